"""What systems under comparison are asked, what they answer, and what is seen of it.

All instants are seconds on one monotonic clock (`time.perf_counter`), that of the process that
measures. Prompts are token ids of the one model that all of them run.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class Setup(Struct, frozen=True, kw_only=True):
    """How every system runs the model. `n_ctx` is of each of `n_slots` streams."""

    model: Path
    n_slots: int
    n_ctx: int
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 2
    kv_unified: bool = False
    projector: Path | None = None


class Sampling(Struct, frozen=True, kw_only=True):
    """How tokens are picked; greedily, as it stands. `seed` counts above temperature 0 only."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    seed: int = 1


class Ask(Struct, frozen=True, kw_only=True):
    """One request. `role` says what it is in its workload ("short", "stream", "turn 3", ...).

    An end token does not end it where `ignore_eos`. With `cancel_after` tokens the client goes
    away. `image` stands before the prompt.
    """

    role: str
    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    json_schema: Mapping[str, object] | None = None
    ignore_eos: bool = True
    cancel_after: int = 0
    image: Path | None = None


class Exchange(Struct, kw_only=True):
    """A request and what came of it.

    `arrivals` are instants and how many tokens came then. `n_evaluated` prompt tokens were
    computed, by the system's own word; the others came from a cache. It is None where the system
    has not said so: none does of a request that was cancelled. `ended` is "length", "stop",
    "cancelled" or "failed", with the `error`.
    """

    role: str
    n_prompt: int
    asked_at: float
    arrivals: list[tuple[float, int]] = []
    ended_at: float = 0.0
    tokens: list[int] = []
    text: str = ""
    n_evaluated: int | None = None
    ended: str = ""
    error: str = ""

    @property
    def n_generated(self) -> int:
        """Tokens that came."""
        return sum(n_tokens for _, n_tokens in self.arrivals)


class Usage(Struct, frozen=True):
    """What the system's processes have used so far: memory now, CPU time since the start."""

    resident_bytes: int
    anonymous_bytes: int
    cpu_s: float


class Peer(Protocol):
    """A running system. `name` is as the report has it; `version` says what it is exactly."""

    name: str
    version: str
    command: Sequence[str]

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without a begin token."""
        ...

    async def ask(self, ask: Ask, exchange: Exchange) -> None:
        """Send a request, and write down what comes, as it comes.

        Never raises for what the system does: `exchange.ended` is "failed" then.
        """
        ...

    async def embed(self, inputs: Sequence[Sequence[int]]) -> float:
        """Have inputs embedded in one request; return how many seconds it took."""
        ...

    async def usage(self) -> Usage:
        """Return what its processes have used."""
        ...


class PeerUnavailable(Exception):
    """A system cannot be run here; says why, and what would help."""


class StartPeer(Protocol):
    """How a system is started for a setup, and stopped when the block is left.

    Raises:
        PeerUnavailable: not here.
    """

    def __call__(self, setup: Setup) -> AbstractAsyncContextManager[Peer]:
        """Yield it once it answers."""
        ...
