"""Random requests, with every option there is: what people ask, and what they had better not."""

from dataclasses import dataclass, replace
from random import Random

from runnerd.core.batch import Adapter, Adapters, Sampling
from runnerd.core.prompt import Part, Prompt, TextPart, TokensPart
from runnerd.core.sequence import Options
from runnerd.engine.base import Engine
from tests.soak.worlds import ADAPTERS, World

LITERALS = ("yes", "no, never", "naïve ☃ text", "a<b<c<END>d", "aaaaaaab")
STOPS = ("e", "th", "aa", "<END>", "zzzz", " a", "never", "\n", "☃")
WORDS = ("the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "saw ", "snow ☃ ", "\x00 ")
SYSTEMS = ("", "You are kind. ", "You are terse, and you never say more than you have to. ")
IMAGES = ("<image:5:red>", "<image:9:blue>", "<image:12:4:green>", "<image:7:causal:grey>")
# Each is off most of the time, so that every pair of options meets, and plain ones too.
SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": (0.0, 0.7, 1.0, 1.5, 5.0),
    "dynatemp_range": (0.0, 0.5),
    "dynatemp_exponent": (1.0, 2.0),
    "top_k": (0, 1, 5, 40, 1000),
    "top_p": (1.0, 0.95, 0.5, 0.0),
    "min_p": (0.0, 0.05, 1.0),
    "typical_p": (1.0, 0.6),
    "top_n_sigma": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.1, 0.02),
    "repeat_penalty": (1.0, 1.3),
    "frequency_penalty": (0.0, 0.4, -0.2),
    "presence_penalty": (0.0, 2.0),
    "penalty_last_n": (64, 0, 3),
    "dry_multiplier": (0.0, 1.0),
    "dry_base": (1.75, 1.1),
    "dry_breakers": (("\n", ":", '"', "*"), (), (" ", "th")),
    "dry_allowed_length": (2, 1),
    "dry_last_n": (1024, 8),
    "mirostat": (0, 1, 2),
    "mirostat_tau": (5.0, 1.0),
    "mirostat_eta": (0.1, 0.9),
    "logit_bias": ((), ((101, float("-inf")),), ((32, 4.0), (97, -3.0))),
    "ignore_end": (False, True),
    "n_logprobs": (None, 0, 3, 260),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `literal` is the text that a grammar of its own forces."""

    parts: tuple[Part, ...]
    options: Options
    literal: str | None = None

    def on(self, engine: Engine) -> tuple[Prompt, Options]:
        """Return it as an engine takes it."""
        options = self.options
        if self.literal is not None:
            grammar = engine.constrain("grammar", f'root ::= "{self.literal}"')
            options = replace(options, sampling=replace(options.sampling, constraint=grammar))
        return engine.expand(self.parts), options


class Asker:
    """Draws requests. Some go on with a conversation, so that there are prefixes to find."""

    def __init__(self, rng: Random, world: World) -> None:
        self._rng = rng
        self._n_ctx = world.n_ctx
        self._talks: list[tuple[Part, ...]] = []

    def ask(self) -> list[Ask]:
        """Return a request: one, or several completions of the same prompt."""
        rng = self._rng
        parts, options = self._prompt(), self._options()
        literal = rng.choice(LITERALS) if rng.random() < 0.08 else None
        if literal is not None:  # of what it needs nothing is banned
            plain = replace(options.sampling, logit_bias=(), ignore_end=False)
            options = replace(options, sampling=plain)
        n = rng.choice((2, 3)) if rng.random() < 0.06 else 1
        return [Ask(parts, _with_seed(options, index), literal) for index in range(n)]

    def answered(self, ask: Ask, tokens: list[int]) -> None:
        """Remember a conversation, to go on with it later."""
        self._talks.append((*ask.parts, TokensPart(tuple(tokens))))
        del self._talks[: len(self._talks) - 8]

    def _prompt(self) -> tuple[Part, ...]:
        rng = self._rng
        if rng.random() < 0.01:
            return ()
        before: tuple[Part, ...] = (TextPart(rng.choice(SYSTEMS), special=True),)
        if self._talks and rng.random() < 0.5:
            before = rng.choice(self._talks)
            if len(before) > 2 and rng.random() < 0.2:
                before = before[: rng.randrange(1, len(before))]
        n_words = rng.choice((1, 3, 6)) if rng.random() < 0.9 else self._n_ctx // 4
        words = "".join(rng.choice(WORDS) for _ in range(n_words))
        image = rng.choice(IMAGES) if rng.random() < 0.15 else ""
        turn = TextPart(f"<|im_start|>user\n{image}", special=True)
        return (*before, turn, TextPart(words), TextPart("<|im_end|>", special=True))

    def _options(self) -> Options:
        rng = self._rng
        n_few = rng.randint(1, 12)
        max_tokens = rng.choice((n_few, n_few, n_few, n_few, 0, 1, 40, None))
        wants_shift = rng.random() < 0.3
        if wants_shift:
            max_tokens = max_tokens if max_tokens is not None else self._n_ctx + rng.randrange(30)
        stops = rng.sample(STOPS, rng.choice((1, 2, 5))) if rng.random() < 0.2 else ()
        return Options(
            sampling=self._sampling(),
            max_tokens=max_tokens,
            stops=tuple(stops),
            n_keep=rng.choice((0, 0, 0, 1, 7, -1, self._n_ctx - 1, 2**31 - 1)),
            truncate=rng.random() < 0.7,
            shift=wants_shift,
            adapters=self._adapters(),
            cache_scope=rng.choice(("", "", "", "other")),
            priority=rng.choices(("normal", "high", "low"), (6, 1, 1))[0],
            wants_progress=rng.random() < 0.2,
        )

    def _sampling(self) -> Sampling:
        rng = self._rng
        if rng.random() < 0.3:
            return Sampling()
        fields = {
            name: rng.choice(values[1:])
            for name, values in SAMPLING.items()
            if rng.random() < (0.7 if name == "temperature" else 0.12)
        }
        return Sampling(seed=rng.randrange(2**32), **fields)  # type: ignore[arg-type]

    def _adapters(self) -> Adapters:
        rng = self._rng
        if rng.random() < 0.8:
            return ()
        names = sorted(rng.sample(ADAPTERS, rng.choice((1, 1, 2))))
        return tuple(Adapter(name, rng.choice((1.0, 0.5))) for name in names)


def _with_seed(options: Options, index: int) -> Options:
    sampling = options.sampling
    return replace(options, sampling=replace(sampling, seed=sampling.seed + index))
