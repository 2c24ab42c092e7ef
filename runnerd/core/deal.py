"""Dealing a step's prompt rows: turns round the ring, groups whole or not at all.

A `Draft` collects what one sequence contributes to a step. Batches run tokens first, then
media, then non-causal groups, so within a step a sequence may move on in that order only:
text before an image shares its step, text after it waits for the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from runnerd.core.batch import Batch, BatchKind, Span
from runnerd.core.prompt import Group
from runnerd.core.sequence import Sequence
from runnerd.core.shelf import Shelf

MIN_TURN = 32  # rows; shorter turns would spread many prompts thin and finish none

ORDER = {kind: n for n, kind in enumerate(BatchKind)}


@dataclass(slots=True)
class Piece:
    """A run of inputs [start, stop) for one batch."""

    kind: BatchKind
    start: int
    stop: int
    group: Group | None = None

    def is_continued_by(self, piece: "Piece") -> bool:
        """Whether the next piece goes on where this one ends, in the same group or in none."""
        return piece.kind is self.kind and piece.group is self.group


@dataclass(slots=True)
class Draft:
    """What one sequence contributes to a step: nothing beyond its next halt."""

    sequence: Sequence
    shelf: Shelf
    stop: int = 0
    halt: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stop = self.sequence.n_past
        self.halt = next_halt(self.sequence, self.shelf)

    def take(self, n_turn: int, n_left: int) -> int:
        """Take up to `n_turn` rows, more only to end a group; never over `n_left`."""
        n_taken = 0
        while n_taken < n_turn:
            piece = self._next(n_turn - n_taken, n_left - n_taken)
            if piece is None:
                break
            n_taken += piece.stop - piece.start
            self.stop = piece.stop
            self._append(piece)
        return n_taken

    def _next(self, n_want: int, n_left: int) -> Piece | None:
        """Return the next run that fits, or nothing."""
        at, end = self.stop, self.halt
        if at == end:
            return None
        group = self.sequence.layout.next_group(at)
        if group is None or group.start > at:
            end = end if group is None else min(end, group.start)
            piece = Piece(BatchKind.TOKENS, at, min(end, at + n_want, at + n_left))
        elif group.one_pass:
            piece = Piece(BatchKind.MEDIA_NON_CAUSAL, at, group.stop, group)
        else:
            stop = min(group.stop, at + n_want, at + n_left)
            piece = Piece(BatchKind.MEDIA, at, stop, group)
        fits = 0 < piece.stop - piece.start <= n_left
        return piece if fits and self._may_follow(piece.kind) else None

    def _may_follow(self, kind: BatchKind) -> bool:
        if not self.pieces:
            return True
        last = self.pieces[-1].kind
        if kind is last is BatchKind.MEDIA_NON_CAUSAL:
            return False  # one group per sequence and call
        return ORDER[last] <= ORDER[kind]

    def _append(self, piece: Piece) -> None:
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.is_continued_by(piece):
            last.stop = piece.stop
        else:
            self.pieces.append(piece)

    def spans(self) -> Iterable[tuple[BatchKind, Span]]:
        """Return the pieces as spans; the last input of the sequence is sampled."""
        sequence = self.sequence
        for piece in self.pieces:
            group = piece.group
            span = Span(
                seq_id=sequence.seq_id,
                slot_id=sequence.slot_id,
                pos=sequence.layout.position(piece.start if group is None else group.start),
                inputs=tuple(sequence.inputs[piece.start : piece.stop]),
                wants_logits=piece.stop == len(sequence.inputs) and sequence.wants_token,
            )
            if group is not None:
                span = replace(
                    span,
                    media_id=group.media_id,
                    row0=group.row0 + piece.start - group.start,
                    media=self.shelf.get(group.media_id),
                )
            yield piece.kind, span


def next_halt(sequence: Sequence, shelf: Shelf) -> int:
    """Return how far a sequence can go in a step: media that are not on the shelf halt it, too."""
    n_past, stop = sequence.n_past, shelf.halt(sequence)
    return next((halt for halt in sequence.halts if n_past < halt < stop), stop)


def n_least(sequence: Sequence) -> int:
    """Return how many rows a sequence must get to move on: one, or the group it is at."""
    group = sequence.layout.group_at(sequence.n_past)
    return group.n_inputs if group is not None and group.one_pass else 1


def decode_span(sequence: Sequence) -> Span:
    """Return the one row of a generating sequence."""
    slot = sequence.slot
    n_past = slot.n_past
    pos, inputs = sequence.layout.position(n_past), (sequence.inputs[n_past],)
    return Span(sequence.seq_id, slot.slot_id, pos, inputs, True)


def deal(
    ring: list[Sequence], n_rows: int, n_room: int, shelf: Shelf, n_tile: int = 1
) -> list[Draft]:
    """Deal up to `n_rows` prompt rows over the ring, beginning at its head.

    Each sequence gets a turn of an equal share, but of no less than `n_tile` rows, which take
    less time together than apart; what is left over goes round once more. The
    head may exceed `n_rows`, up to `n_room`, for a group that would not fit otherwise. A
    sequence that gets nothing has waited longest when the next step is dealt.
    """
    drafts = [Draft(sequence, shelf) for sequence in ring]
    head = ring[0].layout.group_at(drafts[0].stop)
    if head is not None and head.one_pass and head.n_inputs <= n_room:
        n_rows = max(n_rows, head.n_inputs)
    n_turn = max(MIN_TURN, n_tile, n_rows // len(ring))
    n_left = n_rows
    for draft in drafts:
        n_left -= draft.take(min(n_turn, n_left), n_left)
    for draft in drafts:
        n_left -= draft.take(n_left, n_left)
    return [draft for draft in drafts if draft.pieces]


def pack(decoding: Iterable[Span], drafts: Iterable[Draft], n_ubatch: int) -> tuple[Batch, ...]:
    """Sort spans into batches: generating rows first, and non-causal groups by `n_ubatch`."""
    tokens = list(decoding)
    media: list[Span] = []
    groups: list[list[Span]] = []
    n_in_last = n_ubatch
    for kind, span in (item for draft in drafts for item in draft.spans()):
        match kind:
            case BatchKind.TOKENS:
                tokens.append(span)
            case BatchKind.MEDIA:
                media.append(span)
            case BatchKind.MEDIA_NON_CAUSAL:
                if n_in_last + len(span.inputs) > n_ubatch:
                    groups.append([])
                    n_in_last = 0
                groups[-1].append(span)
                n_in_last += len(span.inputs)
    batches = [Batch(BatchKind.TOKENS, tuple(tokens))] if tokens else []
    if media:
        batches.append(Batch(BatchKind.MEDIA, tuple(media)))
    batches += [Batch(BatchKind.MEDIA_NON_CAUSAL, tuple(spans)) for spans in groups]
    return tuple(batches)
