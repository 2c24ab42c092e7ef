"""The reference model once more, one number at a time: slow, and plainly right.

It shares the weights with the engine and nothing else: no arrays, no batches, no slots.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, exp, sin, sqrt

from runnerd.core.batch import Adapters, Span
from runnerd.core.prompt import Group, Prompt
from runnerd.engine.base import EncodedImage
from runnerd.engine.reference import ReferenceOptions
from runnerd.engine.reference.media import Medium
from runnerd.engine.reference.model import Model
from runnerd.engine.reference.options import LayerKind

Row = list[float]
Matrix = list[list[float]]


@dataclass(slots=True)
class Cell:
    """What is stored of an input: where it is, and a key and a value per layer."""

    position: int
    keys: list[Row] = field(default_factory=list)
    values: list[Row] = field(default_factory=list)


class Oracle:
    """One sequence. Edit `cells` to remove or shift."""

    def __init__(
        self,
        options: ReferenceOptions,
        adapters: Adapters = (),
        media: Mapping[int, EncodedImage] | None = None,
    ) -> None:
        self.options = options
        self.media = media or {}
        self.model = Model(options)
        self.cells: list[Cell] = []
        self.weights = self.model.adapted(adapters)
        self.output: Matrix = self.weights.output.tolist()
        self.bias: Row = self.model.bias.tolist()
        self.state: Row = [0.0] * options.dim

    def feed_prompt(self, prompt: Prompt) -> Row:
        """Feed a whole prompt, groups at once; return the logits after its last input."""
        index, position = 0, 0
        last: Row = []
        while index < len(prompt.inputs):
            group = prompt.layout.group_at(index)
            if group is None:
                last = self.feed_token(prompt.inputs[index], position)
                index, position = index + 1, position + 1
                continue
            rows: Matrix = self.rows_of(prompt, group)
            cells = [Cell(position + offset) for offset in self.offsets_of(group)]
            for run in [cells] if group.one_pass else [[cell] for cell in cells]:
                last = self.feed(rows[: len(run)], run)
                rows = rows[len(run) :]
            index, position = group.stop, position + group.n_pos
        return last

    def rows_of(self, prompt: Prompt, group: Group) -> Matrix:
        """Return the rows of a group."""
        if group.encoded:
            rows = self.media[group.media_id].rows.tolist()
            return [list(row) for row in rows[group.row0 : group.row0 + group.n_inputs]]
        whole = Span(0, 0, 0, prompt.inputs[group.start : group.stop], False, group.media_id)
        named: Matrix = self.model.embed_media(whole).tolist()
        return named

    def offsets_of(self, group: Group) -> Iterator[int]:
        """Yield how far the group has reached at each of its rows."""
        if not group.encoded:
            medium = Medium.of_id(group.media_id)
            yield from (row * medium.n_pos // medium.n_rows for row in range(medium.n_rows))
            return
        reached = 0
        for row in range(group.row0, group.row0 + group.n_inputs):
            axes: list[int] = self.media[group.media_id].offsets[:, row].tolist()
            reached = max(reached, *axes)
            yield reached

    def feed_token(self, token: int, position: int) -> Row:
        """Feed one token; return the logits after it."""
        return self.feed([self.model.embeddings[token].tolist()], [Cell(position)])

    def feed(self, rows: Matrix, cells: list[Cell]) -> Row:
        """Feed rows that all see each other; return the logits after the last."""
        self.cells += cells
        for index, layer in enumerate(self.weights.layers):
            kind = self.options.kinds[index]
            queries = []
            for row, cell in zip(rows, cells, strict=True):
                unit = normal(row)
                queries.append(times(unit, layer.query.tolist()))
                cell.keys.append(times(unit, layer.key.tolist()))
                cell.values.append(times(unit, layer.value.tolist()))
            for at, (query, cell) in enumerate(zip(queries, cells, strict=True)):
                if kind is LayerKind.RECURRENT:
                    known = normal(self.carry(cell.values[index]))
                else:
                    known = self.attend(index, kind, query, cell.position)
                seen = times(known, layer.out.tolist())
                row = [a + b for a, b in zip(rows[at], seen, strict=True)]
                inner = [max(x, 0.0) for x in times(normal(row), layer.up.tolist())]
                added = times(inner, layer.down.tolist())
                rows[at] = [a + b for a, b in zip(row, added, strict=True)]
        last = dots(normal(rows[-1]), self.output)
        logits = [x / (256 * 64) + bias for x, bias in zip(last, self.bias, strict=True)]
        if self.options.layers == 0:
            phase = self.model.phases[cells[-1].position % len(self.model.phases)]
            logits = [x + float(y) for x, y in zip(logits, phase, strict=True)]
        return logits

    def carry(self, value: Row) -> Row:
        """Put a value into the recurrent state; return the state."""
        last = len(value) - 1
        for at, new in enumerate(value):
            stays = round((0.5 + 0.47 * at / last) * 256)
            self.state[at] = round(self.state[at] * stays / 256) + new
        return self.state

    def attend(self, layer: int, kind: LayerKind, query: Row, position: int) -> Row:
        """Return the weighted mean of the values that a row sees, head by head."""
        window = len(self.cells) + position + 1
        if kind is LayerKind.SLIDING:
            window = self.options.window
        cells = [cell for cell in self.cells if position - cell.position < window]
        size = len(query) // self.options.heads
        seen: Row = []
        for head in range(0, len(query), size):
            turned = turn(query[head : head + size], position)
            scores = []
            for cell in cells:
                key = turn(cell.keys[layer][head : head + size], cell.position)
                fit = sum(a * b for a, b in zip(turned, key, strict=True))
                scores.append(round(fit / (256 * 256 * sqrt(size)) * 16))
            best = max(scores)
            weights = [
                round(exp((score - best) / 16) * 65536) if best - score < 256 else 0
                for score in scores
            ]
            for at in range(head, head + size):
                total = sum(w * c.values[layer][at] for w, c in zip(weights, cells, strict=True))
                seen.append(float(round(total / sum(weights))))
        return seen


def dots(row: Sequence[float], matrix: Matrix) -> Row:
    return [
        sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*matrix, strict=True)
    ]


def times(row: Sequence[float], matrix: Matrix) -> Row:
    return [float(round(x / 64)) for x in dots(row, matrix)]


def normal(row: Row) -> Row:
    mean_square = sum(x * x for x in row) / len(row)
    return [float(round(x * 256 / sqrt(mean_square + 1))) for x in row]


def turn(row: Row, position: int) -> Row:
    half = len(row) // 2
    first, second = row[:half], row[half:]
    angles = [position * 100.0 ** -(pair / half) for pair in range(half)]
    cosines = [round(cos(angle) * 1024) for angle in angles]
    sines = [round(sin(angle) * 1024) for angle in angles]
    pairs = list(zip(first, second, cosines, sines, strict=True))
    return [float(round((a * c - b * s) / 1024)) for a, b, c, s in pairs] + [
        float(round((a * s + b * c) / 1024)) for a, b, c, s in pairs
    ]
