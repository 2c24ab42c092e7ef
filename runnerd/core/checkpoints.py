"""Checkpoints: what of which prompt's beginning the engine has kept, and where to keep more.

Models with sliding windows or a recurrent state cannot go back by forgetting the end of a slot.
A checkpoint holds what is missing then. It is known by what was evaluated up to there, so every
slot that holds the same beginning can go back to it, and no beginning is kept twice.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from sys import maxsize

from runnerd.core.prompt import Layout
from runnerd.core.slots import CacheKey

BUDGET_BYTES = 256 * 2**20  # 32 checkpoints of Gemma 3 270M
MAX_CHECKPOINTS = 1024  # however small: a look-up hashes a prompt up to each length there is
MIN_APART = 64  # inputs; closer ones save less than a step
TAIL = 4  # inputs at a prompt's end that may come out otherwise when text is added behind them
SPARSE_FROM = 256  # inputs before the last border; earlier borders at about twice as much each

Mark = tuple[CacheKey, int, bytes]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the engine keeps of the first `n_inputs`, which end at `n_pos`, of some prompt.

    `oldest` is the first position that its sliding layers hold.
    """

    checkpoint_id: int
    n_inputs: int
    n_pos: int
    oldest: int


class Checkpoints:
    """The checkpoints that there are, within a budget; the least recently used goes first."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._kept: dict[Mark, Checkpoint] = {}
        self._sizes: dict[int, int] = {}
        self._n_made = 0
        self._last_bytes = 0
        self._n_too_many = maxsize  # inputs of the shortest that was larger than the budget

    @property
    def n_kept(self) -> int:
        """How many there are."""
        return len(self._sizes)

    @property
    def n_bytes(self) -> int:
        """What they take in memory."""
        return sum(self._sizes.values())

    def matching(self, key: CacheKey, inputs: Sequence[int]) -> list[Checkpoint]:
        """Return the checkpoints of beginnings of these inputs, the shortest first."""
        n_most = len(inputs)
        lengths = sorted({n for other, n, _ in self._kept if other == key and n <= n_most})
        marks = [(key, n, digest) for n, digest in _digests(inputs, lengths)]
        return [self._kept[mark] for mark in marks if mark in self._kept]

    def add(
        self, key: CacheKey, inputs: Sequence[int], n_inputs: int, n_pos: int, oldest: int
    ) -> Checkpoint | None:
        """Return a new checkpoint of the first inputs; nothing if it is kept, or too large."""
        if n_inputs >= self._n_too_many:
            return None
        ((_, digest),) = _digests(inputs, [n_inputs])
        mark = (key, n_inputs, digest)
        if mark in self._kept:
            self.use(self._kept[mark])
            return None
        self._n_made += 1
        self._kept[mark] = Checkpoint(self._n_made, n_inputs, n_pos, oldest)
        return self._kept[mark]

    def use(self, checkpoint: Checkpoint) -> None:
        """Note that a checkpoint was of use."""
        mark = next(mark for mark, kept in self._kept.items() if kept is checkpoint)
        self._kept[mark] = self._kept.pop(mark)

    def discard(self, key: CacheKey, inputs: Sequence[int]) -> list[int]:
        """Forget the checkpoints of beginnings of these inputs; return their ids."""
        gone = [kept.checkpoint_id for kept in self.matching(key, inputs)]
        for mark, kept in list(self._kept.items()):
            if kept.checkpoint_id in gone:
                del self._kept[mark]
                self._sizes.pop(kept.checkpoint_id, None)
        return gone

    def make_room(self) -> list[int]:
        """Return the ids of those to drop for those that no step has saved yet.

        They are expected to be as large as the last.
        """
        n_expected = len(self._kept) - len(self._sizes)
        return self._drop(self._budget_bytes - n_expected * self._last_bytes, n_expected)

    def sized(self, saved: Collection[tuple[int, int]]) -> list[int]:
        """Note the sizes of checkpoints just saved; return the ids of those to drop for them."""
        if not saved:
            return []
        self._sizes.update(saved)
        for kept in self._kept.values():
            n_bytes = self._sizes.get(kept.checkpoint_id, 0)
            if n_bytes > self._budget_bytes:
                self._n_too_many = min(self._n_too_many, kept.n_inputs)
        for _, self._last_bytes in saved:
            pass
        return self._drop(self._budget_bytes, 0)

    def _drop(self, n_most_bytes: int, n_expected: int) -> list[int]:
        """Drop the least recently used until the rest takes no more than so many bytes."""
        n_bytes = sum(self._sizes.values())
        dropped: list[int] = []
        for mark, kept in list(self._kept.items()):
            if n_bytes <= n_most_bytes and len(self._sizes) + n_expected <= MAX_CHECKPOINTS:
                break
            if kept.checkpoint_id in self._sizes:  # else no step has saved it yet
                n_bytes -= self._sizes.pop(kept.checkpoint_id)
                dropped.append(kept.checkpoint_id)
                del self._kept[mark]
        return dropped

    def check(self) -> None:
        """Assert that the budget holds, and that every size is of a checkpoint."""
        assert sum(self._sizes.values()) <= self._budget_bytes
        ids = [kept.checkpoint_id for kept in self._kept.values()]
        assert len(ids) == len(set(ids))
        assert self._sizes.keys() <= set(ids)


def _digests(inputs: Sequence[int], lengths: Sequence[int]) -> Iterable[tuple[int, bytes]]:
    """Return a digest of the first inputs for each of the lengths, which ascend."""
    if not lengths:
        return
    content = memoryview(array("q", inputs[: lengths[-1]])).cast("B")
    hashed, done = blake2b(digest_size=16), 0
    for n in lengths:
        hashed.update(content[8 * done : 8 * n])
        done = n
        yield n, hashed.digest()


def halts_of(
    borders: Sequence[int], layout: Layout, n_prompt: int, n_cached: int, known: Iterable[int]
) -> list[int]:
    """Return where the evaluation of a prompt stops for a checkpoint, ascending.

    At the last border, where a later prompt of the same chat may differ, and shortly before the
    end; where these are close to each other, at the earlier of them. Then at ever fewer borders
    before. None in a group, in what is cached, or close to what is `known`.
    """
    tail = max(n_prompt - TAIL, 1)
    last = borders[-1] if borders else tail
    wanted = [last, tail] if tail - last >= MIN_APART else [min(last, tail)]
    n_back = SPARSE_FROM
    while n_back < last:
        wanted.append(min(borders, key=lambda border: abs(last - n_back - border), default=0))
        n_back *= 2
    taken, halts = list(known), list[int]()
    for at in map(layout.cut_start, wanted):
        if n_cached < at < n_prompt and all(abs(at - other) >= MIN_APART for other in taken):
            taken.append(at)
            halts.append(at)
    return sorted(halts)
