"""What an image becomes in a prompt, by its size alone: tokens, and runs of rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from runnerd.core.prompt import Group, media_key


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that an encoder makes of a picture, or of a tile of it; they take `n_pos` positions."""

    n_rows: int
    n_pos: int
    one_pass: bool


@dataclass(frozen=True)
class Picture:
    """The tokens that mark an image, and its rows, in order."""

    parts: tuple[tuple[int, ...] | RowRun, ...]

    @cached_property
    def runs(self) -> tuple[RowRun, ...]:
        """The rows, without what is around them."""
        return tuple(part for part in self.parts if isinstance(part, RowRun))

    @cached_property
    def n_inputs(self) -> int:
        """How many inputs it takes."""
        return sum(part.n_rows if isinstance(part, RowRun) else len(part) for part in self.parts)

    @cached_property
    def n_rows(self) -> int:
        """How many of its inputs are rows."""
        return sum(run.n_rows for run in self.runs)

    def largest(self) -> tuple[int, RowRun]:
        """Return the longest run of rows, and the number of its first row."""
        found = max(range(len(self.runs)), key=lambda index: self.runs[index].n_rows)
        return sum(run.n_rows for run in self.runs[:found]), self.runs[found]

    def inputs(self, media_id: int) -> Iterator[int]:
        """Yield tokens, and keys for rows."""
        row = 0
        for part in self.parts:
            if isinstance(part, RowRun):
                yield from (media_key(media_id, row + i) for i in range(part.n_rows))
                row += part.n_rows
            else:
                yield from part

    def groups(self, media_id: int, start: int) -> Iterator[Group]:
        """Yield the groups of an image whose first input is `start`: together they are a unit."""
        at, row = start, 0
        for part in self.parts:
            if isinstance(part, RowRun):
                stop = at + part.n_rows
                yield Group(
                    start=at,
                    stop=stop,
                    n_pos=part.n_pos,
                    media_id=media_id,
                    one_pass=part.one_pass,
                    row0=row,
                    encoded=True,
                    lead=at - start,
                    trail=start + self.n_inputs - stop,
                )
                at, row = stop, row + part.n_rows
            else:
                at += len(part)


PictureOf = Callable[[int, int], Picture]
"""Gives what an image of a width and a height becomes; raises InvalidMedia if it cannot."""
