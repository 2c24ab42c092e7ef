"""Requests of every kind, made up for a model that is there to be asked."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from random import Random

import msgspec

from loadtest.images.requests import pictures
from loadtest.prompts import WORDS
from runnerd.link import Request
from runnerd_protocol.messages import (
    Adapter,
    Detokenize,
    Embed,
    Generate,
    GetModel,
    GetStatus,
    MediaPart,
    Plan,
    Prompt,
    Subscribe,
    TextPart,
    Tokenize,
    TokensPart,
)

N_PREFIXES, N_PICTURES = 6, 8
MOST_TOKENS = 12
PICTURE_SIDE = 512  # as a BMP 768 KiB
SLOW_BYTES = 300_000  # of an answer: more than a socket holds for a reader that takes its time
SLOW_TOKENS, SLOW_LOGPROBS = 160, 100  # likewise


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to ask of a model. `text` is longer than its context, `tokens` are its own."""

    n_ctx: int
    text: str
    tokens: list[int]
    chats: list[Prompt]
    adapters: list[str]
    reads_images: bool
    knows_schemas: bool


class Requests:
    """Makes requests, whose ids are still to be set; all that is random comes from `rng`."""

    def __init__(self, ground: Ground, rng: Random) -> None:
        self.ground = ground
        self._rng = rng
        self._prefixes = [" ".join(rng.choices(WORDS, k=6)) for _ in range(N_PREFIXES)]
        self._pictures = pictures(PICTURE_SIDE, "BMP")
        self._known = list(islice(self._pictures, N_PICTURES))
        self._others: dict[str, Callable[[], Request]] = {
            "embed": self._embed,
            "tokenize": lambda: Tokenize(0, self._text()),
            "detokenize": lambda: Detokenize(0, ground.tokens[: rng.randint(1, 100)]),
            "status": lambda: GetStatus(0),
            "subscribe": lambda: Subscribe(0, 0.05),
            "model": lambda: GetModel(0),
            "plan": lambda: Plan(0),
            "slow text": self._slow_text,
        }

    def new_picture(self) -> bytes:
        """Return the file of a picture that was not in a request so far."""
        return next(self._pictures)

    def make(self, kind: str, literal: str = "") -> Request:
        """Return a request that can be served; of "grammar" it can say nothing but a literal."""
        other = self._others.get(kind)
        return self._generate(kind, literal) if other is None else other()

    def make_wrong(self, kind: str) -> Request:
        """Return a request that must be refused."""
        tokens = self.ground.tokens[: self.ground.n_ctx + self._rng.randint(1, 8)]
        changes: dict[str, dict[str, object]] = {
            "too long": {"prompt": [TokensPart(tokens)]},
            "bad grammar": {"grammar": 'root ::= "a" ('},
            "bad schema": {"json_schema": '{"type": "what"}'},
            "bad field": {"temperature": -1.0},
            "no such adapter": {"adapters": [Adapter("nobody's")]},
            "bad image": {"prompt": [MediaPart(b"no image"), TextPart(" What is it?")]},
        }
        return _changed(Generate(0, self._text(), max_tokens=4), changes[kind])

    def _generate(self, kind: str, literal: str) -> Generate:
        rng, ground = self._rng, self.ground
        max_tokens = min(rng.randint(1, MOST_TOKENS) for _ in range(2))  # mostly few: it takes long
        asked = Generate(0, self._text(), max_tokens=max_tokens, seed=rng.getrandbits(31))
        change: dict[str, object] = {}
        match kind:
            case "chat":
                change = {"prompt": rng.choice(ground.chats)}
            case "several":
                change = {"n": rng.choice((2, 3)), "max_tokens": rng.randint(1, 6)}
            case "logprobs":
                change = {"logprobs": rng.choice((0, 1, 5, 20)), "return_tokens": True}
            case "stop":
                change = {"stop": rng.sample(("e", "th", " a", "\n", "zzzz"), 2)}
            case "grammar":
                change = {"grammar": f'root ::= "{literal}"', "max_tokens": 2 * len(literal)}
            case "schema":
                change = {"json_schema": self._schema()}
            case "sampled":
                change = self._sampled()
            case "truncate":
                tokens = ground.tokens[: ground.n_ctx + rng.randint(1, 40)]
                change = {"prompt": [TokensPart(tokens)], "truncate": True, "n_keep": 4}
            case "shift":
                tokens = ground.tokens[: ground.n_ctx - rng.randint(1, 6)]
                change = {"prompt": [TokensPart(tokens)], "shift": True, "ignore_end": True}
            case "adapter":
                scale = rng.choice((0.0, 0.5, 1.0))
                change = {"adapters": [Adapter(rng.choice(ground.adapters), scale)]}
            case "image":
                is_new = rng.random() < 0.5
                file = self.new_picture() if is_new else rng.choice(self._known)
                change = {"prompt": [MediaPart(file), TextPart(" What is it?")], "max_tokens": 3}
            case "slow stream":
                change = {
                    "max_tokens": SLOW_TOKENS,
                    "logprobs": SLOW_LOGPROBS,
                    "shift": True,
                    "ignore_end": True,
                }
            case _:
                change = {"temperature": rng.choice((0.0, 0.8))}
        return _changed(asked, change)

    def _sampled(self) -> dict[str, object]:
        rng = self._rng
        options: dict[str, object] = {
            "repeat_penalty": 1.2,
            "frequency_penalty": 0.3,
            "dry_multiplier": 0.8,
            "mirostat": 2,
            "typical_p": 0.7,
            "top_n_sigma": 1.0,
            "xtc_probability": 0.5,
            "dynatemp_range": 0.4,
            "logit_bias": {self.ground.tokens[0]: -1000.0},
        }
        return {name: options[name] for name in rng.sample(sorted(options), 3)}

    def _schema(self) -> str:
        names = self._rng.sample(WORDS, 2)
        properties = {name: {"type": "integer"} for name in names}
        return msgspec.json.encode(
            {"type": "object", "properties": properties, "required": names}
        ).decode()

    def _embed(self) -> Embed:
        n_inputs = self._rng.choice((1, 1, 1, 2, 4))
        return Embed(0, [self._text() for _ in range(n_inputs)])

    def _slow_text(self) -> Detokenize:
        ground = self.ground
        n_times = -(-SLOW_BYTES // len(ground.text))
        return Detokenize(0, ground.tokens * n_times)

    def _text(self) -> str:
        rng = self._rng
        return " ".join([rng.choice(self._prefixes), *rng.choices(WORDS, k=rng.randint(1, 5))])


def _changed(request: Generate, change: dict[str, object]) -> Generate:
    """Return a request with other fields; nobody but the daemon checks them."""
    return msgspec.structs.replace(request, **change)
