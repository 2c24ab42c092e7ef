"""What a load is, and what was seen of it. Plain records, cheap to make and to pass on.

All instants are seconds on one monotonic clock, that of the process that measured.
"""

from msgspec import Struct


class Load(Struct, frozen=True, kw_only=True):
    """What is asked of a model, in each round: `n_streams` prompts at the same time."""

    n_streams: int
    n_prompt: int
    max_tokens: int
    n_rounds: int = 1
    seed: int = 1


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
    """One round: its streams, and the forward passes they took."""

    streams: list[StreamRecord]
    n_prompt: int
    n_steps: int
