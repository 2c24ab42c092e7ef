"""How tokens are picked, with which adapters, and what was picked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that was named at load, and how much of it to apply."""

    name: str
    scale: float = 1.0


Adapters = tuple[Adapter, ...]
"""What a request runs with: by name, no name twice, no scale of 0. Part of the cache key."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick the next token; fields as in the wire's `Generate`, off by default.

    `n_logprobs` None: log-probabilities are not wanted; 0: only that of the token picked.
    `logit_bias` holds a token at most once; -inf bans it. `ignore_end` bans the end tokens, but
    where a constraint leaves nothing else.
    `constraint` is what `Engine.constrain` gave for a grammar.
    """

    temperature: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 1024
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_end: bool = False
    seed: int = 0
    n_logprobs: int | None = None
    constraint: object | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the choice by repetition penalties."""
        return self.penalty_last_n > 0 and (
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def n_history(self) -> int:
        """How many earlier tokens change the choice."""
        n_penalties = self.penalty_last_n if self.has_penalties else 0
        return max(n_penalties, self.dry_last_n if self.dry_multiplier > 0.0 else 0)


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A row's logits gave no token (NaN, or nothing left to choose from).

    `spoils_slot`: the model's own logits were no numbers, so what the slot holds is of no use; in
    a unified cache, what any slot holds. An engine may have emptied it; who plans lets it be.
    """

    message: str
    spoils_slot: bool = False


@dataclass(frozen=True, slots=True)
class Logprobs:
    """A token picked, with log-probabilities (nats) of the raw distribution.

    `top` are the likeliest tokens, descending.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


Sampled = int | Logprobs | SampleFault
"""A token; with its log-probabilities, if they are wanted; or why there is none."""
