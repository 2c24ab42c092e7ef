"""A soak: rounds in all worlds. What fails says how to run it again."""

from collections import Counter
from random import Random
from time import perf_counter

from tests.soak.drive import Round
from tests.soak.worlds import WORLDS, World

ROUND = 125  # requests, on one engine


class SoakFailed(AssertionError):
    """A round went wrong; says how to run it again."""


def run_round(world: World, seed: int, n_requests: int) -> Counter[str]:
    """Run a round, half of the seeds in a world of another size; return what happened.

    Raises:
        SoakFailed: something was not as it must be.
    """
    if seed // len(WORLDS) % 2:
        world = world.of_other_size(Random(seed))
    with world.engine() as engine:
        round_ = Round(world, seed, engine)
        try:
            round_.run(n_requests)
        except Exception as err:
            again = f"python -m tests.soak {world.name} --seed {seed} --requests {n_requests}"
            raise SoakFailed(f"{type(err).__name__}: {err}\nto see it again: {again}") from err
    return round_.counts


def run_rounds(n_requests: int, seed: int) -> Counter[str]:
    """Run so many requests in rounds, all worlds in turn; return what happened."""
    counts: Counter[str] = Counter()
    names = list(WORLDS)
    started_at = perf_counter()
    while counts["requests"] < n_requests:
        n_left = n_requests - counts["requests"]
        counts += run_round(WORLDS[names[seed % len(names)]], seed, min(ROUND, n_left))
        seed += 1
    counts["requests/s"] = round(counts["requests"] / (perf_counter() - started_at))
    return counts


def table(counts: Counter[str]) -> str:
    """Return the counts as lines."""
    return "\n".join(f"{counts[name]:>10}  {name}" for name in sorted(counts))
