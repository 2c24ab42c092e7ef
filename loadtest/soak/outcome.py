"""What a soak comes to: what was seen of a daemon, and the bars that it is held against."""

from msgspec import Struct

from loadtest.bars import Bar, at_most
from loadtest.growth import growth, n_more
from loadtest.soak.looks import Look, n_differing


class SoakLoad(Struct, frozen=True, kw_only=True):
    """What is done: requests, of which the first warm it up, and then connections.

    `n_pictures` are asked about before, so that what is kept of them is full.
    """

    n_pictures: int = 200
    n_requests: int = 20_000
    n_warm_up: int = 2_000
    n_connects: int = 10_000
    seed: int = 1


class Counts(Struct, frozen=True):
    """What became of all requests; of those that were left the daemon's end was not heard."""

    n_asked: int
    n_finished: int
    n_failed: int
    n_answered: int
    n_left: int
    n_cancelled: int
    n_connections: int
    n_endless: int
    n_wrong: int


class Seen(Struct, frozen=True):
    """What was seen of a daemon. `connect_looks` are those after connections."""

    counts: Counts
    looks: list[Look]
    connect_looks: list[Look]
    n_tracebacks: int
    returncode: int
    is_gone: bool


class SoakOutcome(Struct, frozen=True):
    """What was done, everything that was seen, and the bars."""

    load: SoakLoad
    seen: Seen
    bars: list[Bar]


def soak_bars(load: SoakLoad, seen: Seen) -> list[Bar]:
    """Hold what was seen against its limits; there are two looks after the warm-up at least."""
    looks = [*seen.looks, *seen.connect_looks]
    held = [look.holding for look in seen.looks]
    bars = growth([each for each in held if each.n_requests >= load.n_warm_up]).bars("request")
    if seen.connect_looks:
        bars += growth([look.holding for look in seen.connect_looks]).bars("connection")
        n_tasks = n_more([look.n_tasks for look in seen.connect_looks])
        bars.append(at_most("more tasks, by connections", n_tasks, 0))
    limits = [
        ("requests without an end", seen.counts.n_endless),
        ("answers that were not to be expected", seen.counts.n_wrong),
        ("looks at which it was not at rest", sum(not look.is_at_rest for look in looks)),
        ("looks at which it said something else", n_differing(looks)),
        ("more tasks, by requests", n_more([look.n_tasks for look in seen.looks])),
        ("its children that nobody has waited for", max(look.n_zombies for look in looks)),
        ("tracebacks in its log", seen.n_tracebacks),
        ("exit status", abs(seen.returncode)),
        ("processes left behind", int(not seen.is_gone)),
    ]
    return bars + [at_most(name, value, 0) for name, value in limits]
