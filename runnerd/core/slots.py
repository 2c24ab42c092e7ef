"""The slot pool: permits, leases, and what idle slots still remember.

Each slot is free or leased by one sequence; permits and leases add up to `n_slots`. A free
slot keeps its cells: the first `n_past` of its `inputs` are a prefix that a new prompt with the
same key may start from.
"""

from dataclasses import dataclass, field

from runnerd.core.batch import Adapters
from runnerd.core.prompt import Layout

CacheKey = tuple[str, Adapters]
"""What two requests have in common that may share cached prefixes: a scope, and adapters."""


@dataclass(slots=True, eq=False)
class Slot:
    """One lane of the KV cache. `tick` says when it was last given back.

    `oldest` is the first position that layers with a sliding window still hold. The cells from
    the input `moved_at` on have been moved: they have seen inputs that are gone.
    """

    slot_id: int
    inputs: list[int] = field(default_factory=list)
    n_past: int = 0
    tick: int = 0
    is_leased: bool = False
    key: CacheKey | None = None
    layout: Layout = field(default_factory=Layout)
    oldest: int = 0
    moved_at: int | None = None

    @property
    def n_offered(self) -> int:
        """Inputs at the start that another prompt may start from."""
        return self.n_past if self.moved_at is None else min(self.n_past, self.moved_at)


class Lease:
    """A permit, and the `slot` once one is taken with it. Given back exactly once."""

    slot: Slot

    def __init__(self, pool: "SlotPool") -> None:
        self._pool = pool
        self._has_slot = False
        self._is_live = True

    def take(self, slot: Slot) -> None:
        """Take a free slot with this permit."""
        assert self._is_live, "lease was given back"
        assert not self._has_slot, "lease holds a slot already"
        assert not slot.is_leased, f"slot {slot.slot_id} is leased"
        slot.is_leased = True
        self.slot = slot
        self._has_slot = True

    def give_back(self) -> None:
        """Return the permit and free the slot, which keeps what it has cached."""
        assert self._is_live, "lease given back twice"
        self._is_live = False
        if self._has_slot:
            slot = self.slot
            slot.inputs = slot.inputs[: slot.n_past]
            slot.is_leased = False
            slot.tick = self._pool.next_tick()
        self._pool.n_free += 1


class SlotPool:
    """`n_slots` slots behind as many permits."""

    def __init__(self, n_slots: int) -> None:
        self.slots = tuple(Slot(slot_id) for slot_id in range(n_slots))
        self.n_free = n_slots
        self._tick = 0

    def next_tick(self) -> int:
        """Return a number larger than all before."""
        self._tick += 1
        return self._tick

    def acquire(self) -> Lease | None:
        """Return a lease if a permit is left. Taken before any slot is looked at."""
        if self.n_free == 0:
            return None
        self.n_free -= 1
        return Lease(self)

    def free(self) -> list[Slot]:
        """Return the free slots."""
        return [slot for slot in self.slots if not slot.is_leased]

    def n_beside(self, slot: Slot) -> int:
        """Return how many of a slot's neighbours are leased."""
        slots, at = self.slots, slot.slot_id
        has_after = at + 1 < len(slots) and slots[at + 1].is_leased
        return has_after + (at > 0 and slots[at - 1].is_leased)

    def idle(self) -> list[Slot]:
        """Return the free slots that still hold cells, least recently used first."""
        idle = [slot for slot in self.slots if not slot.is_leased and slot.n_past > 0]
        return sorted(idle, key=lambda slot: slot.tick)

    def check(self) -> None:
        """Assert that permits, leases and slots agree."""
        self._check_permits()
        for slot in self.slots:
            assert 0 <= slot.n_past <= len(slot.inputs), f"slot {slot.slot_id}: n_past"
            assert slot.n_past == 0 or slot.key is not None, f"slot {slot.slot_id}: whose?"
            if slot.moved_at is not None:
                assert slot.is_leased, f"slot {slot.slot_id}: offers what was moved"

    def _check_permits(self) -> None:
        n_leased = sum(slot.is_leased for slot in self.slots)
        assert self.n_free + n_leased == len(self.slots), f"{self.n_free} free, {n_leased} leased"
