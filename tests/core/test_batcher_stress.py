"""Thousands of steps of random calls from a few seeds, with the properties of the simulation."""

from dataclasses import replace
from random import Random

import pytest

from runnerd.core.batch import Adapter, Limits, Sampling
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options, Priority
from runnerd.errors import EngineFailed
from tests.core.simulation import Simulation, fault_or_token
from tests.core.some_images import make_image
from tests.helpers import Image, make_prompt

N_STEPS = 400
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")


def random_limits(rng: Random) -> Limits:
    n_slots = rng.randint(1, 5)
    n_ctx = rng.choice((rng.randint(8, 48), rng.randint(64, 128)))
    n_batch = rng.randint(n_slots, 48)
    limits = Limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=rng.randint(n_ctx, n_slots * n_ctx),
        n_batch=n_batch,
        n_ubatch=rng.randint(1, n_batch),
        can_shift=rng.random() < 0.5,
        is_unified=rng.random() < 0.5,
        window=rng.choice((0, 0, 3, 11)),
        can_rewind=rng.random() < 0.8,
    )
    is_recurrent = not limits.can_rewind and limits.window == 0 and rng.random() < 0.5
    return replace(limits, has_attention=not is_recurrent)


def random_prompt(rng: Random, limits: Limits) -> Prompt:
    beginning = rng.choice((0, 0, 30, 60))  # of several: worth a copy, and worth waiting for
    parts: list[list[int] | Image] = [[97 + n % 2 for n in range(beginning)]]
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.4:
            n_rows = rng.randint(1, min(limits.n_ubatch, 12))
            n_tiles = rng.choice((1, 1, 2))
            parts.append(make_image(1, n_rows, rng.randint(1, n_rows), n_tiles, rng.randrange(8)))
        else:
            parts.append([rng.choice((97, 98)) for _ in range(rng.randint(1, 16))])
    return make_prompt(*parts)


def random_options(rng: Random) -> Options:
    return Options(
        sampling=Sampling(n_logprobs=rng.choice((None, 0))),
        max_tokens=rng.choice((None, 0, 1, 5, 60)),
        stops=rng.choice(((), (), ("abab",))),
        n_keep=rng.choice((-1, 0, 3, 100)),
        truncate=rng.random() < 0.5,
        shift=rng.random() < 0.5,
        adapters=rng.choice(((), (), (Adapter("a"),))),
        priority=rng.choice(PRIORITIES),
        wants_progress=rng.random() < 0.5,
    )


def random_call(sim: Simulation, rng: Random) -> None:
    n = rng.random()
    if n < 0.25:
        prompt, options = random_prompt(rng, sim.limits), random_options(rng)
        sim.submit(prompt, options)
        for _ in range(rng.choice((0, 0, 0, 2))):  # relatives, that may wait for the first
            sim.submit(Prompt((*prompt.inputs, rng.choice((97, 98))), prompt.groups), options)
    elif n < 0.28 and sim.live:
        sim.end(rng.choice(list(sim.live)), "cancelled")
    elif n < 0.34 and sim.live:
        sim.pause(rng.choice(list(sim.live)), paused=rng.random() < 0.4)
    elif n < 0.6:
        for media_id in sim.wanted()[: rng.randint(1, 3)]:
            sim.offer(media_id)
    elif n < 0.63:
        for media_id in sim.wanted()[: rng.randint(1, 2)]:
            sim.fail_media(media_id, EngineFailed("cannot be encoded"))


@pytest.mark.parametrize("seed", range(12))
def test_every_property_holds_over_many_steps(seed: int) -> None:
    rng = Random(seed)
    sim = Simulation(random_limits(rng))
    for _ in range(N_STEPS):
        random_call(sim, rng)
        if not sim.plan():
            continue
        random_call(sim, rng)
        while sim.may_run_ahead and rng.random() < 0.8:
            if not sim.follow(lambda _: fault_or_token(rng.randrange(2**20)), 0.01):
                break
            random_call(sim, rng)
        if sim.step is None:
            continue
        n_batches, n = rng.randrange(len(sim.step.batches)), rng.random()
        if n < 0.03:
            sim.back_off(lambda _: fault_or_token(rng.randrange(2**20)), n_batches)
        elif n < 0.06 or sim.batcher.wants_abort:
            sim.abort(lambda _: fault_or_token(rng.randrange(2**20)), n_batches, rng)
        else:
            sim.commit(lambda _: fault_or_token(rng.randrange(2**20)), rng.random() * 0.1)
    sim.drain(lambda _: rng.choice((97, 98, 0)))
    assert sim.batcher.seq_ids == ()
    sim.replay()
