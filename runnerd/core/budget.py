"""How many prompt rows a step may carry while others generate.

Every prompt row that shares a step with generating sequences lengthens their inter-token
latency. The cost of a row and of a step without any are measured, and the budget is what
fits in between them and the target. Where generating alone takes as long as that, prompts still
get a share of each step: who waits for a first token must not wait for the rest of all texts.
"""

MIN_ROWS = 16  # a prompt always gets on, however slow the machine
LEAST_SHARE = 0.5  # for prompts, of what a step without them takes
LEAST_COST = 0.1  # of a row, to an average one: a step may have been quicker than the last
WEIGHT = 0.2  # of the newest measurement; five steps forget most of an outlier


class PrefillBudget:
    """Prompt rows per step, from the steps seen so far."""

    def __init__(self, n_batch: int, target_itl_s: float) -> None:
        self._n_batch = n_batch
        self.target_itl_s = target_itl_s
        self._decode_s = 0.0
        self._row_s: float | None = None

    def rows(self, n_decoding: int) -> int:
        """Return how many prompt rows the next step may carry."""
        n_room = self._n_batch - n_decoding
        if n_decoding == 0 or self._row_s is None:
            return n_room
        left_s = max(self.target_itl_s - self._decode_s, LEAST_SHARE * self._decode_s)
        n_rows = int(left_s / self._row_s) if self._row_s > 0 else n_room
        return min(max(n_rows, MIN_ROWS), n_room)

    def observe(self, n_decoding: int, n_prefill: int, elapsed_s: float) -> None:
        """Learn from a step of so many rows that took so long."""
        if n_prefill == 0:
            old = self._decode_s or elapsed_s
            self._decode_s = old + WEIGHT * (elapsed_s - old)
            return
        base_s = self._decode_s if n_decoding else 0.0
        average_s = elapsed_s / (n_decoding + n_prefill)
        row_s = max((elapsed_s - base_s) / n_prefill, LEAST_COST * average_s)
        old = row_s if self._row_s is None else self._row_s
        self._row_s = old + WEIGHT * (row_s - old)
