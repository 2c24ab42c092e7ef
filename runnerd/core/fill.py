"""Filling a step: whose turn it is, and which rows they get.

Generating rows come first, in slot order; prompt rows are dealt over what is left. All rows of
a step are of one set of adapters.
"""

from operator import attrgetter

from runnerd.core.adapters import AdapterTurns
from runnerd.core.batch import Adapters, Batch, Limits
from runnerd.core.budget import PrefillBudget
from runnerd.core.deal import Draft, deal, decode_span, n_least, next_halt, pack
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from runnerd.core.shelf import Shelf


class Fill:
    """Fills steps from what is resident. `n_decoding` rows of the last step generate."""

    def __init__(
        self, limits: Limits, residency: Residency, shelf: Shelf, target_itl_s: float
    ) -> None:
        self.n_decoding = 0
        self.adapters: Adapters = ()
        self._limits = limits
        self._residency = residency
        self._shelf = shelf
        self._turns = AdapterTurns()
        self._budget = PrefillBudget(limits.n_batch, target_itl_s, limits.n_tile)
        self._prefill_cap = limits.n_batch
        self._group_went_alone = False

    def batches(self) -> tuple[Batch, ...]:
        """Return the rows of the next step, or nothing if nobody has anything to evaluate."""
        decoding, ring = self._with_room()
        batches = self._group_alone(decoding, ring) or self._fill(decoding, ring)
        if batches:
            self._turns.count_step()
        return batches

    def observe(self, n_rows: int, elapsed_s: float) -> None:
        """Learn from a step that ran whole, with so many rows."""
        self._budget.observe(self.n_decoding, n_rows - self.n_decoding, elapsed_s)
        self._prefill_cap = self._limits.n_batch
        self._residency.n_prompt_rows = self._budget.rows(self.n_decoding)

    def aim_at(self, target_itl_s: float) -> None:
        """Change the gap between tokens that prompts must not push beyond."""
        self._budget.target_itl_s = target_itl_s

    def halve(self, n_rows: int) -> bool:
        """Let the next step have half the prompt rows of one that found no room, if it had any.

        That is no use where a group had to exceed what was left of earlier halves.
        """
        n_prefill = n_rows - self.n_decoding
        if n_prefill <= 1 or n_prefill > self._prefill_cap:
            return False
        self._prefill_cap = n_prefill // 2
        return True

    def _with_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return who generates, and the ring: who has prompt left to evaluate.

        Who has to wait for an encoded medium is in neither.

        The head of the ring is whoever waits longest; newcomers come last. There is a cell
        for every generating row and for the least that the head can take.
        """
        while True:
            active = self._residency.active()
            active = [s for s in active if not s.layout.groups or not self._shelf.blocks(s)]
            self.adapters = self._turns.choose([s.options.adapters for s in active])
            decoding: list[Sequence] = []
            ring: list[Sequence] = []
            for sequence in active:
                if sequence.options.adapters == self.adapters:
                    (decoding if sequence.is_decoding else ring).append(sequence)
            ring.sort(key=lambda s: s.last_step)
            n_rows = len(decoding) + (n_least(ring[0]) if ring else 0)
            if self._residency.make_room(n_rows):
                return decoding, ring
            found = self._residency.suspend_youngest()
            assert found, "no room for one sequence alone"

    def _fill(self, decoding: list[Sequence], ring: list[Sequence]) -> tuple[Batch, ...]:
        """Put every generating row into the step, and prompt rows into what is left."""
        drafts: list[Draft] = []
        self.n_decoding = len(decoding)
        self._group_went_alone = False
        if ring and not (decoding and self._budget.is_stale):
            n_room = self._limits.n_batch - len(decoding)
            n_rows = min(self._budget.rows(len(decoding)), self._prefill_cap)
            n_ahead = sum(next_halt(s, self._shelf) - s.n_past for s in ring)
            self._residency.make_room(len(decoding) + min(n_rows, n_ahead))
            n_room = min(n_room, self._residency.ledger.n_free - len(decoding))
            n_rows = min(n_rows, n_room)
            drafts = deal(ring, n_rows, n_room, self._shelf, self._limits.n_tile)
        spans = sorted(map(decode_span, decoding), key=attrgetter("slot_id"))
        return pack(spans, drafts, self._limits.n_ubatch)

    def _group_alone(self, decoding: list[Sequence], ring: list[Sequence]) -> tuple[Batch, ...]:
        """Give a group that generating rows leave no room for its own step, never two in a row."""
        if self._group_went_alone or not ring:
            return ()
        n_rows = n_least(ring[0])
        if n_rows <= self._limits.n_batch - len(decoding):
            return ()
        draft = Draft(ring[0], self._shelf)
        draft.take(1, n_rows)
        self.n_decoding = 0
        self._group_went_alone = True
        return pack([], [draft], self._limits.n_ubatch)
