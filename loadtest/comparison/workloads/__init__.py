"""What systems are asked: by name, with all that a turn needs to know."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import getdoc

from loadtest.comparison.exchange import Exchange, Peer
from loadtest.comparison.figures import Figures
from loadtest.comparison.workloads.beside import (
    embedding_figures,
    embeddings,
    images,
    json,
    json_figures,
)
from loadtest.comparison.workloads.chat import chat, chat_figures
from loadtest.comparison.workloads.mixed import mixed
from loadtest.comparison.workloads.prefill import long_behind_short, shared_prefix, two_longs
from loadtest.comparison.workloads.streams import N_PROMPT, burst, contended, sampled, steady

RAW, OWN_TIME = ("batched-bench", "raw-loop"), "engine-free"
STEADY_STREAMS = (1, 4, 8, 16)
N_CTX = 512  # holds what equal streams are asked for, twice

Drive = Callable[[Peer, int], Awaitable[list[Exchange]]]
Measure = Callable[[Sequence[Exchange]], Figures]


@dataclass(frozen=True, slots=True)
class Steady:
    """Streams in lockstep: what those who only measure the model's limit are asked for."""

    n_streams: int
    n_prompt: int
    n_generated: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to ask, of a system with `n_slots` of `n_ctx` positions each.

    `drive` takes the system and a seed. `measure` adds figures that only this workload has.
    `limits` are the names of those that are measured with `steady` beside the systems.
    """

    name: str
    drive: Drive
    n_slots: int
    n_ctx: int
    measure: Measure = lambda _exchanges: {}
    steady: Steady | None = None
    limits: tuple[str, ...] = ()
    needs_projector: bool = False

    @property
    def about(self) -> str:
        """What it shows: the docstring of what drives it."""
        drive = self.drive.func if isinstance(self.drive, partial) else self.drive
        return getdoc(drive) or ""


def workloads(*, is_quick: bool = False) -> dict[str, Workload]:
    """Return all of them by name; quick ones ask for less, and say less."""
    n_generated = 32 if is_quick else 128
    n_long = 1000 if is_quick else 3000
    n_ctx_long = 2048 if is_quick else 4096
    n_images, n_turns, n_requests = (2, 3, 12) if is_quick else (6, 6, 48)
    found = [
        *(
            Workload(
                f"steady-{n_streams}",
                partial(steady, n_streams=n_streams, n_generated=n_generated),
                n_streams,
                N_CTX,
                steady=Steady(n_streams, N_PROMPT, n_generated),
                limits=RAW if n_streams < STEADY_STREAMS[-1] else (*RAW, OWN_TIME),
            )
            for n_streams in STEADY_STREAMS
        ),
        Workload(
            "sampled",
            partial(sampled, n_streams=8, n_generated=n_generated),
            8,
            N_CTX,
            steady=Steady(8, N_PROMPT, n_generated),
            limits=RAW,
        ),
        Workload("contended", partial(contended, n_streams=8, n_generated=n_generated), 8, N_CTX),
        Workload("burst", partial(burst, n_streams=16, n_generated=n_generated // 2), 8, N_CTX),
        Workload("long-behind-short", partial(long_behind_short, n_long=n_long), 6, n_ctx_long),
        Workload("two-longs", partial(two_longs, n_long=n_long), 6, n_ctx_long),
        Workload("shared-prefix", partial(shared_prefix, n_requests=16, n_prefix=1000), 16, 1280),
        Workload("chat", partial(chat, n_conversations=8, n_turns=n_turns), 8, 2048, chat_figures),
        Workload("mixed", partial(mixed, n_requests=n_requests, rate_per_s=1.2), 8, 2048),
        Workload("images", partial(images, n_images=n_images), 8, 2048, needs_projector=True),
        Workload(
            "json", partial(json, n_streams=8, n_generated=n_generated), 8, N_CTX, json_figures
        ),
        Workload(
            "embeddings",
            partial(embeddings, n_streams=4, n_generated=n_generated),
            4,
            N_CTX,
            embedding_figures,
        ),
    ]
    return {each.name: each for each in found}
