"""Whose inputs go into the next pass of embeddings.

Requests take turns, an input each, so that a long one holds up nobody. A pass has one pooling.
A request's inputs are taken in order, so its results come in order. A request whose results
nobody fetches is left out until somebody does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from runnerd.engine.base import Pooling, Vectors
from runnerd.errors import RequestError

INPUTS_PER_PASS = 64  # so that the first results of many short inputs do not wait for the last
READY_BYTES = 2**20  # of results that wait to be fetched: then others have their turn

Tokens = Sequence[int]


class EmbeddingRequest:
    """The inputs of one request, and their embeddings as they come."""

    def __init__(
        self, inputs: Sequence[Tokens], pooling: Pooling, wake: Callable[[], None]
    ) -> None:
        self.pooling = pooling
        self.n_taken = 0
        self._n_given = 0
        self.error: RequestError | None = None
        self._inputs = inputs
        self._wake = wake
        self._ready: deque[Vectors] = deque()
        self._n_ready_bytes = 0
        self._has_news = anyio.Event()

    @property
    def next_input(self) -> Tokens | None:
        """The input that is to go into a pass next."""
        return self._inputs[self.n_taken] if self.n_taken < len(self._inputs) else None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to do for it here."""
        return self.error is not None or self._n_given == len(self._inputs)

    @property
    def may_go_on(self) -> bool:
        """Whether somebody fetches the results."""
        return self._n_ready_bytes <= READY_BYTES

    def give(self, vectors: Vectors) -> None:
        """Add embeddings of the inputs after those that have one."""
        self._n_given += len(vectors)
        self._ready.append(vectors)
        self._n_ready_bytes += vectors.nbytes
        self._has_news.set()

    def fail(self, error: RequestError) -> None:
        """Say that there will be no more."""
        self.error = error
        self._has_news.set()

    async def fetch(self) -> Vectors:
        """Wait for the next embeddings.

        Raises:
            RequestError: there will be none.
        """
        while not self._ready:
            if self.error is not None:
                raise self.error
            self._has_news = anyio.Event()
            await self._has_news.wait()
        vectors = self._ready.popleft()
        self._n_ready_bytes -= vectors.nbytes
        self._wake()
        return vectors


@dataclass(frozen=True, slots=True)
class Pass:
    """Inputs that go through together, and whose they are."""

    pooling: Pooling
    owners: tuple[EmbeddingRequest, ...]
    inputs: tuple[Tokens, ...]

    @property
    def n_rows(self) -> int:
        """The tokens of all inputs."""
        return sum(map(len, self.inputs))


class EmbeddingQueue:
    """The requests with inputs still to be taken, in the order of their turns, by pooling."""

    def __init__(self, n_embed: int) -> None:
        self._n_embed = n_embed
        self._lines: dict[Pooling, deque[EmbeddingRequest]] = {}

    def add(self, request: EmbeddingRequest) -> None:
        """Let a request take part."""
        self._lines.setdefault(request.pooling, deque()).append(request)

    def remove(self, request: EmbeddingRequest) -> None:
        """Take nothing more of a request; one that is not here is ignored."""
        line = self._lines.get(request.pooling, deque())
        if request in line:
            line.remove(request)
            if not line:
                del self._lines[request.pooling]

    def take(self, n_rows_most: int) -> Pass | None:
        """Take the inputs of the next pass: at most so many rows, or one input that is longer."""
        for pooling in list(self._lines):
            line = self._lines.pop(pooling)
            taken = self._deal(line, min(n_rows_most, self._n_embed))
            if line:
                self._lines[pooling] = line  # behind the other poolings
            if taken:
                owners, inputs = zip(*taken, strict=True)
                return Pass(pooling, owners, inputs)
        return None

    def _deal(
        self, line: deque[EmbeddingRequest], n_rows_most: int
    ) -> list[tuple[EmbeddingRequest, Tokens]]:
        """Deal a pass, an input at a time; who does not fit any more is first in the next one."""
        taken: list[tuple[EmbeddingRequest, Tokens]] = []
        n_rows, n_skipped = 0, 0
        while n_skipped < len(line) and len(taken) < INPUTS_PER_PASS:
            request = line[0]
            tokens = request.next_input
            assert tokens is not None, "a request without inputs is in the line"
            if not request.may_go_on:
                n_skipped += 1
                line.rotate(-1)
                continue
            if taken and n_rows + len(tokens) > n_rows_most:
                break
            taken.append((request, tokens))
            n_rows += len(tokens)
            n_skipped = 0
            request.n_taken += 1
            line.popleft()
            if request.next_input is not None:
                line.append(request)
        return taken
