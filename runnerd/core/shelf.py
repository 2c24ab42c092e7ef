"""Encoded media that sequences need: which are there, and which are wanted.

A medium is kept while it is among the next that a sequence with a slot is to evaluate itself. So
what is here is bounded by slots, however many media a prompt has.
"""

from collections.abc import Iterable

from runnerd.core.prompt import Group
from runnerd.core.sequence import Sequence

# Media of a sequence: the one it is at, and one to encode meanwhile. They are held outside of every
# budget: 8 slots with images of 4096 rows of 4096 floats hold 1 GB.
LOOK_AHEAD = 2


class Shelf:
    """Encoded media by their ids."""

    def __init__(self) -> None:
        self._media: dict[int, object] = {}
        self._new: set[int] = set()

    def put(self, media_id: int, media: object) -> None:
        """Keep an encoded medium until `tidy` finds that no running sequence needs it."""
        self._media[media_id] = media
        self._new.add(media_id)

    def get(self, media_id: int) -> object | None:
        """Return a medium that is here."""
        return self._media.get(media_id)

    def lacks(self, group: Group) -> bool:
        """Whether the rows of a group have to be encoded first."""
        return group.encoded and group.media_id not in self._media

    def blocks(self, sequence: Sequence) -> bool:
        """Whether the next input of a sequence is a row that is not here."""
        layout, n_past = sequence.layout, sequence.n_past
        if n_past >= layout.media_stop:  # as in each step of whoever generates
            return False
        group = layout.group_at(n_past)
        return group is not None and self.lacks(group)

    def halt(self, sequence: Sequence) -> int:
        """Return how far a sequence can go: to the first group that is not here."""
        for group in sequence.layout.groups_from(sequence.n_past):
            if self.lacks(group):
                return max(group.start, sequence.n_past)
        return len(sequence.inputs)

    def wanted(self, running: Iterable[Sequence]) -> tuple[int, ...]:
        """Return what is needed and not here, soonest first.

        That is what the fewest inputs lie before; of equals, what is wanted by the sequence that
        no step has served for longest. Paused sequences want nothing.
        """
        found: list[tuple[int, int, int]] = []
        for sequence in running:
            if _may_need_media(sequence) and not sequence.paused and not _is_abandoned(sequence):
                n_past = sequence.n_past
                found += [
                    (group.start - n_past, sequence.last_step, group.media_id)
                    for group in self._lacking(sequence)
                ]
        found.sort(key=lambda need: need[:2])
        return tuple(dict.fromkeys(media_id for _, _, media_id in found))

    def waiting_for(self, media_id: int, running: Iterable[Sequence]) -> list[Sequence]:
        """Return who needs a medium that is not here, paused or not."""
        return [
            sequence
            for sequence in running
            if any(group.media_id == media_id for group in self._lacking(sequence))
            and not _is_abandoned(sequence)
        ]

    def tidy(self, running: Iterable[Sequence]) -> None:
        """Let go of what no running sequence needs."""
        self._new.clear()
        if self._media:
            some = filter(_may_need_media, running)
            needed = {group.media_id for each in some for group in _next_groups(each)}
            self._media = {key: kept for key, kept in self._media.items() if key in needed}

    def check(self, running: Iterable[Sequence]) -> None:
        """Assert that somebody needs all that is kept, but what is new."""
        needed = {group.media_id for each in running for group in _next_groups(each)}
        assert self._media.keys() - self._new <= needed, "a medium that nobody needs"

    def _lacking(self, sequence: Sequence) -> Iterable[Group]:
        return (group for group in _next_groups(sequence) if self.lacks(group))


def _may_need_media(sequence: Sequence) -> bool:
    """Whether there are media ahead: not in a prompt of text, nor where its answer has begun."""
    media_stop = sequence.layout.media_stop
    return media_stop > 0 and sequence.n_past < media_stop


def _next_groups(sequence: Sequence) -> Iterable[Group]:
    """Yield the encoded groups of the next media that a sequence is to evaluate itself."""
    if sequence.suspended_at is not None or sequence.ending is not None:
        return
    ahead: set[int] = set()
    for group in sequence.layout.groups_from(max(sequence.n_past, sequence.n_awaited)):
        if group.encoded:
            ahead.add(group.media_id)
            if len(ahead) > LOOK_AHEAD:
                return
            yield group


def _is_abandoned(sequence: Sequence) -> bool:
    """Whether a sequence waited in vain: the next plan finds out what it has to evaluate."""
    return sequence.follows is not None and sequence.n_awaited == 0
