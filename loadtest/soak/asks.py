"""What a soak asks for: every kind of request, in shares that are drawn from a seed."""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from loadtest.prompts import WORDS
from loadtest.soak.requests import Ground, Requests
from runnerd.link import Request

FAILING, LEFT = 0.1, 0.3  # of all requests
SHORTEST_S, LONGEST_S = 0.0005, 0.5  # until a request is left, where it is left by the clock
MOST_MESSAGES = 5  # read of it before, where they are counted

Leave = Literal["cancel", "close", "reset", "cut"]
"""How a request is left: by a message, or with its connection, with answers unread, amid a frame.

Closing a Unix socket that holds what nobody has read is a reset for the other end.
"""

# How many of a thousand. The rest of the daemon's work is in the length of what is generated.
SHARES = {
    "plain": 250,
    "chat": 100,
    "several": 60,
    "logprobs": 60,
    "stop": 60,
    "grammar": 50,
    "schema": 50,
    "sampled": 60,
    "truncate": 10,
    "shift": 10,
    "adapter": 40,
    "image": 40,
    "embed": 70,
    "tokenize": 50,
    "detokenize": 40,
    "status": 30,
    "subscribe": 20,
    "model": 20,
    "plan": 10,
    "slow text": 4,
    "slow stream": 2,
}
REFUSALS = {
    "too long": "prompt_too_long",
    "bad grammar": "bad_grammar",
    "bad schema": "bad_grammar",
    "bad field": "invalid_request",
    "no such adapter": "invalid_request",
    "bad image": "invalid_media",
}


SLOW = {"slow text", "slow stream"}  # are read drop by drop


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, whose id is still to be set, and what becomes of it.

    With `leave` it is left after `n_messages`, or after `delay_s` if that is not 0. `code` is how
    it fails, if it must. `literal` is what its grammar lets it say.
    """

    kind: str
    request: Request
    leave: Leave | None = None
    n_messages: int = 0
    delay_s: float = 0.0
    code: str = ""
    literal: str = ""
    is_slow: bool = False


class Asks:
    """An endless iterator of requests; the same for the same seed and ground."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self._rng = Random(seed)
        self.requests = Requests(ground, self._rng)
        is_known = {
            "adapter": bool(ground.adapters),
            "image": ground.reads_images,
            "bad image": ground.reads_images,
            "chat": bool(ground.chats),
            "schema": ground.knows_schemas,
        }
        self._kinds = [kind for kind in SHARES if is_known.get(kind, True)]
        self._weights = [SHARES[kind] for kind in self._kinds]
        self._refusals = [kind for kind in REFUSALS if is_known.get(kind, True)]

    def __iter__(self) -> "Asks":
        return self

    def __next__(self) -> Ask:
        """Return the next request."""
        fate = self._rng.random()
        if fate < FAILING:
            kind = self._rng.choice(self._refusals)
            return Ask(kind, self.requests.make_wrong(kind), code=REFUSALS[kind])
        ask = self._ordinary()
        return self._left(ask) if fate < FAILING + LEFT else ask

    def _ordinary(self) -> Ask:
        (kind,) = self._rng.choices(self._kinds, self._weights)
        literal = self._rng.choice(WORDS) if kind == "grammar" else ""
        request = self.requests.make(kind, literal)
        ask = Ask(kind, request, literal=literal, is_slow=kind in SLOW)
        # A subscription has no other end.
        return replace(ask, leave="cancel", n_messages=2) if kind == "subscribe" else ask

    def _left(self, ask: Ask) -> Ask:
        rng = self._rng
        how: Leave = rng.choice(("cancel", "cancel", "cancel", "close", "reset", "cut"))
        if rng.random() < 0.5:
            return replace(ask, leave=how, n_messages=rng.randint(0, MOST_MESSAGES))
        delay_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** rng.random()
        return replace(ask, leave=how, n_messages=0, delay_s=delay_s)
