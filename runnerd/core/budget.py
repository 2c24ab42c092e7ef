"""How many prompt rows a step may carry while others generate.

Every prompt row that shares a step with generating sequences lengthens their inter-token
latency. The cost of a row and of a step without any are measured, and the budget is what
fits in between them and the target. Where generating alone takes as long as that, prompts still
get a share of each step: who waits for a first token must not wait for the rest of all texts.
"""

MOST_S = 0.25  # the target, where none is given,
MOST_TIMES = 8  # but no more than so many times a step without prompts: an eighth is theirs
MIN_ROWS = 16  # a prompt always gets on, however slow the machine
LEAST_SHARE = 0.5  # for prompts, of what a step without them takes
TILE_TIMES = 3  # what fits the chosen target may grow by, to fill the tile of an attention kernel
LEAST_COST = 0.1  # of a row, to an average one: a step may have been quicker than the last
WEIGHT = 0.2  # of the newest measurement; five steps forget most of an outlier
RISING_WEIGHT = 0.8  # the same of one that has risen, as a row's cost does all along a prompt,
MOST_RISE = 1.5  # by no more than that, or it is an outlier in part
STALE_STEPS = 16  # with prompts, after which one without any is measured again

# Rows are multiplied four at a time, and with cells six at a time (llama.cpp's repacked weights,
# tinyBLAS). 44 rows behind 2,800 cells take as long as 48.
TILE_ROWS = 12


class PrefillBudget:
    """Prompt rows per step, from the steps seen so far. A target of 0 is chosen by them, too.

    `n_tile` rows or more cost less each (`Limits`).
    """

    def __init__(self, n_batch: int, target_itl_s: float, n_tile: int = 1) -> None:
        self._n_tile = n_tile
        self._n_batch = n_batch
        self.target_itl_s = target_itl_s
        self._decode_s = 0.0  # of a step without prompts, of as many rows as the last one
        self._n_decoding = 0
        self._n_mixed = 0  # steps since then
        self._row_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """Whether a step without prompts is to be measured before the next one with some.

        It takes an eighth of one with them or so. Streams may be longer by now, or others.
        """
        return self._n_mixed >= STALE_STEPS

    def rows(self, n_decoding: int) -> int:
        """Return how many prompt rows the next step may carry."""
        n_room = self._n_batch - n_decoding
        if n_decoding == 0 or self._row_s is None:
            return n_room
        decode_s = self._alone_s(n_decoding)
        target_s = self.target_itl_s or min(MOST_S, MOST_TIMES * (decode_s or MOST_S))
        left_s = max(target_s - decode_s, LEAST_SHARE * decode_s)
        n_rows = int(left_s / self._row_s) if self._row_s > 0 else n_room
        n_most = n_rows if self.target_itl_s else TILE_TIMES * n_rows
        if 2 * TILE_ROWS <= n_rows < n_room:
            n_rows -= n_rows % TILE_ROWS
        if n_rows < self._n_tile <= n_most:
            n_rows = self._n_tile
        return min(max(n_rows, MIN_ROWS), n_room)

    def observe(self, n_decoding: int, n_prefill: int, elapsed_s: float) -> None:
        """Learn from a step of so many rows that took so long."""
        if n_prefill == 0:
            self._decode_s = _smoothed(self._alone_s(n_decoding) or elapsed_s, elapsed_s)
            self._n_decoding, self._n_mixed = n_decoding, 0
            return
        self._n_mixed += n_decoding > 0
        base_s = self._alone_s(n_decoding)
        average_s = elapsed_s / (n_decoding + n_prefill)
        row_s = max((elapsed_s - base_s) / n_prefill, LEAST_COST * average_s)
        self._row_s = _smoothed(row_s if self._row_s is None else self._row_s, row_s)

    def _alone_s(self, n_decoding: int) -> float:
        """Return what a step without prompts takes, 0 if there was none.

        Each row more or less than there were then is a row's cost; a step of a few rows takes as
        long per row as one of more at least.
        """
        if self._n_decoding == 0 or n_decoding == 0:
            return 0.0
        more_s = (n_decoding - self._n_decoding) * (self._row_s or 0.0)
        least_s = self._decode_s * min(1.0, n_decoding / self._n_decoding)
        return max(self._decode_s + more_s, least_s)


def _smoothed(old: float, new: float) -> float:
    if new > old:
        return old + RISING_WEIGHT * (min(new, MOST_RISE * old) - old)
    return old + WEIGHT * (new - old)
