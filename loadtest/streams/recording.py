"""What a load is, and what was seen of it. Plain records, cheap to make and to pass on.

All instants are seconds on one monotonic clock, that of the process that measured.
"""

from typing import Literal

from msgspec import Struct


class Load(Struct, frozen=True, kw_only=True):
    """What is asked of a model, in each round: `n_streams` prompts at the same time."""

    n_streams: int
    n_prompt: int
    max_tokens: int
    n_rounds: int = 1
    seed: int = 1


class ModelSetup(Struct, frozen=True, kw_only=True):
    """A model's file and its context, as the options of `runnerd serve` have it."""

    model: str
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    kv: Literal["split", "unified"] = "split"
    flash_attn: Literal["auto", "on", "off"] = "auto"


class StreamRecord(Struct):
    """One stream of a round. `arrivals` are instants and how many tokens came then.

    `n_deltas` messages brought the tokens; the bare loop has none.
    """

    asked_at: float
    arrivals: list[tuple[float, int]] = []
    n_deltas: int = 0
    n_cached: int = 0
    ended_early: bool = False

    @property
    def n_generated(self) -> int:
        """Tokens that came."""
        return sum(n_tokens for _, n_tokens in self.arrivals)


class Round(Struct, frozen=True):
    """One round: its streams, the forward passes and the CPU time of the process they took."""

    streams: list[StreamRecord]
    n_prompt: int
    n_steps: int
    cpu_s: float = 0.0
