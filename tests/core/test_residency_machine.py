"""Residency against a naive cache: what an engine would hold is exactly right, at all times.

Any calls in any order: sequences come, wait for each other, run in turns of any size, are
paused, shifted, aborted and ended; in every mode of the KV cache and for every kind of model.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from runnerd.core.batch import Batch, Limits, StepResult
from runnerd.core.deal import Draft, pack
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Options, Sequence, admit
from runnerd.core.shelf import Shelf
from runnerd.errors import RequestError
from tests.core.naive import NaiveCache, Row, cells_of, media_rows
from tests.core.some_images import make_image
from tests.helpers import Image, make_prompt

BUDGET = 60  # bytes, of which the naive cache asks one per cell


KINDS = ((0, True), (0, True), (4, True), (9, True), (0, False), (5, False))


def make_kind(rng: Random, window: int, *, can_rewind: bool, is_unified: bool) -> Limits:
    """Return limits of some size for a kind of model and a mode of the KV cache."""
    n_slots, n_ctx = rng.randint(1, 5), rng.randint(8, 60)
    n_all = n_slots * n_ctx
    return Limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=rng.choice((n_all, n_ctx, rng.randint(n_ctx, n_all))),
        n_batch=64,
        n_ubatch=64,
        can_shift=rng.random() < 0.7,
        is_unified=is_unified,
        window=window,
        can_rewind=can_rewind,
        has_attention=can_rewind or window > 0 or rng.random() < 0.5,
    )


seeds = st.integers(0, 2**16)
limits = st.builds(
    lambda seed, kind, is_unified: make_kind(
        Random(seed), kind[0], can_rewind=kind[1], is_unified=is_unified
    ),
    seeds,
    st.sampled_from(KINDS),
    st.booleans(),
)
images = st.builds(
    make_image,
    st.integers(1, 2),
    st.integers(2, 5),
    st.just(2),
    st.sampled_from((1, 1, 2)),
    st.sampled_from((0, 1, 4, 5)),  # none that is to be encoded
)
runs = st.lists(st.integers(1, 2), min_size=1, max_size=24)
beginnings = st.sampled_from(([], [1] * 7, [1] * 18, [1] * 18 + [2] * 9))
prompts = st.builds(
    lambda beginning, parts: make_prompt(beginning, *parts),
    beginnings,
    st.lists(st.one_of(runs, runs, images), min_size=1, max_size=3),
)


class Machine:
    """Residency, the cache that an engine would have, and steps between them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.residency = Residency(limits, BUDGET)
        self.cache = NaiveCache(limits)
        self.n_shared = 0
        self._rows: dict[int, Row] = {}
        self._n_made = 0

    def admit(self, prompt: Prompt, options: Options) -> None:
        """Take in a sequence, if there is a slot and there are cells."""
        residency = self.residency
        try:
            sequence = admit(self._n_made, prompt, options, self.limits, 0.0)
        except RequestError:
            return
        self._n_made += 1
        self._rows.update(media_rows(prompt))
        if not residency.resume() or not residency.can_take(sequence):
            return
        lease = residency.pool.acquire()
        if lease is not None:
            residency.admit(sequence, lease)
            assert sequence.n_past < len(sequence.inputs)
        self.check()

    def plan(self, rng: Random) -> tuple[Batch, ...]:
        """Give some sequences turns of any size; carry out the edits."""
        residency = self.residency
        residency.resume()
        while True:
            active = [s for s in residency.active() if s.n_pending > 0]
            if residency.make_room(len(active) and 6) or not residency.suspend_youngest():
                break
        taking = [s for s in active if rng.random() < 0.8] or active[:1]
        drafts = [Draft(sequence, Shelf()) for sequence in taking]
        for draft in drafts:
            n_left = min(residency.ledger.n_free, 64) - sum(_n_rows(draft) for draft in drafts)
            draft.take(rng.choice((1, 3, 8, 64)), n_left)
        batches = pack([], drafts, 64)
        self.flush()
        return batches

    def flush(self) -> None:
        """Carry out the edits so far, and compare what is held."""
        self.check()
        edits = tuple(self.residency.edits)
        self.residency.edits.clear()
        self.cache.edit(edits)
        self._saved = self.cache.saved(edits)
        for slot in self.residency.pool.slots:
            held = cells_of(slot.inputs[: slot.n_past], self._rows)
            assert self.cache.slots[slot.slot_id] == held
            assert self.cache.n_fresh(slot.slot_id) >= slot.n_offered
            self.cache.assert_whole(slot.slot_id)
        assert self.cache.n_cells == self.residency.ledger.n_used
        n_held = sum(slot.n_past for slot in self.residency.pool.slots)
        self.n_shared = max(self.n_shared, n_held - self.cache.n_cells)

    def run(self, batches: tuple[Batch, ...], rng: Random, n_done: int, *, aborts: bool) -> None:
        """Run some of the batches; the next finds no room, or is stopped in the middle."""
        residency, stored = self.residency, list[int | None]()
        aborts &= n_done > 0 or not self.cache.is_shifting
        for batch in batches[:n_done]:
            self.cache.run(batch, self._rows)
        spans = batches[n_done].spans if aborts and n_done < len(batches) else ()
        for span in spans:
            n_stored = rng.randint(0, len(span.inputs)) if span.media_id == 0 else 0
            stored.append(n_stored if self.limits.can_rewind else None)
        if spans:
            self.cache.run(batches[n_done], self._rows, stored)
        residency.observe(
            StepResult(n_done, (), (), tuple(stored) or None, self.cache.oldest(), self._saved)
        )
        running = {sequence.seq_id: sequence for sequence in residency.running}
        for batch in batches[:n_done]:
            for span in batch.spans:
                residency.store(running[span.seq_id], len(span.inputs))
        for span, n in zip(spans, stored, strict=True):
            if n is None:
                residency.lose(running[span.seq_id])
            else:
                residency.store(running[span.seq_id], n)
        for sequence in list(residency.running):
            self._go_on(sequence, rng)
        if n_done < len(batches):
            residency.mend()
        self.flush()

    def _go_on(self, sequence: Sequence, rng: Random) -> None:
        if sequence.n_pending == 0:
            sequence.inputs.append(rng.choice((1, 2, 3)))
            sequence.n_generated += 1
        if sequence.n_past == self.limits.n_ctx or rng.random() < 0.02:
            if sequence.n_past == self.limits.n_ctx and sequence.options.shift:
                self.residency.shift(sequence)
            else:
                self.end(sequence, rng)

    def end(self, sequence: Sequence, rng: Random) -> None:
        """End a sequence, sometimes by a stop string that cuts off some of it."""
        if sequence.n_generated and rng.random() < 0.5:
            n_cut = rng.randint(0, min(4, sequence.n_generated))
            sequence.n_seen = max(len(sequence.inputs) - n_cut, sequence.n_keep)
        assert sequence.lease is not None
        self.residency.release(sequence, sequence.lease)

    def check(self) -> None:
        """Assert the invariants."""
        self.residency.check()

    def check_all_end(self) -> None:
        """Assert that everybody comes to an end."""
        rng = Random(0)
        for n in range(400):
            for sequence in list(self.residency.running):
                sequence.paused = False
                if n > 200 and sequence.n_generated > 0:
                    self.end(sequence, rng)
            if not self.residency.running:
                return
            batches = self.plan(rng)
            assert batches, "nobody gets on"
            self.run(batches, rng, len(batches), aborts=False)
        raise AssertionError("somebody does not end")


def _n_rows(draft: Draft) -> int:
    return sum(piece.stop - piece.start for piece in draft.pieces)


BEGINNINGS = ([1] * 3, [1] * 18, [1] * 18 + [2] * 18)


def some_prompt(rng: Random) -> Prompt:
    """Return a prompt that shares its beginning with some others, and has an image or none."""
    parts: list[list[int] | Image] = [rng.choice(BEGINNINGS)]
    for _ in range(rng.randint(0, 2)):
        if rng.random() < 0.3:
            flags = rng.choice((0, 1, 4, 5))
            parts.append(make_image(1, rng.randint(2, 5), 2, rng.choice((1, 1, 2)), flags))
        parts.append([rng.choice((1, 2))] * rng.randint(1, 20))
    prompt = make_prompt(*parts)
    borders = (len(parts[0]) if isinstance(parts[0], list) else 0,)
    return Prompt(prompt.inputs, prompt.groups, borders)


def some_options(rng: Random) -> Options:
    """Return options that matter to the cache."""
    return Options(
        n_keep=rng.choice((-1, 0, 3, 20)),
        truncate=True,
        shift=rng.random() < 0.4,
        cache_scope=rng.choice(("", "", "", "a")),
    )


def soak(machine: Machine, rng: Random, n_calls: int) -> None:
    """Make calls of every kind."""
    residency = machine.residency
    for _ in range(n_calls):
        match rng.randrange(12):
            case 0 | 1 | 2:
                prompt, options = some_prompt(rng), some_options(rng)
                for _ in range(rng.choice((1, 1, 3))):
                    machine.admit(prompt, options)
            case 3:
                for sequence in residency.running:
                    sequence.paused = rng.random() < 0.3
            case 4 if residency.running:
                machine.end(rng.choice(residency.running), rng)
            case 5 if rng.random() < 0.3:
                residency.suspend_youngest()
            case 6 | 7:
                batches = machine.plan(rng)
                n_done = rng.randint(0, len(batches))
                machine.run(batches, rng, n_done, aborts=rng.random() < 0.6)
            case _:
                batches = machine.plan(rng)
                machine.run(batches, rng, len(batches), aborts=False)
        machine.check()


@pytest.mark.parametrize("is_unified", [False, True])
@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_what_an_engine_would_hold_is_right_whatever_happens(
    kind: tuple[int, bool], is_unified: bool
) -> None:
    window, can_rewind = kind
    for seed in range(12):
        rng = Random(seed)
        limits = make_kind(rng, window, can_rewind=can_rewind, is_unified=is_unified)
        machine = Machine(limits)
        soak(machine, rng, 120)
        machine.check_all_end()


options = st.builds(some_options, st.builds(Random, seeds))


class ResidencyMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.made: Machine | None = None

    @initialize(limits=limits)
    def start(self, limits: Limits) -> None:
        self.made = Machine(limits)

    @property
    def machine(self) -> Machine:
        assert self.made is not None
        return self.made

    @rule(prompt=prompts, options=options)
    def admit(self, prompt: Prompt, options: Options) -> None:
        self.machine.admit(prompt, options)

    @rule(prompt=prompts, options=options, n=st.integers(2, 4))
    def admit_alike(self, prompt: Prompt, options: Options, n: int) -> None:
        for _ in range(n):
            self.machine.admit(prompt, options)

    @rule(seed=seeds, n_steps=st.integers(1, 12))
    def run(self, seed: int, n_steps: int) -> None:
        rng = Random(seed)
        for _ in range(n_steps):
            batches = self.machine.plan(rng)
            self.machine.run(batches, rng, len(batches), aborts=False)

    @rule(seed=seeds, aborts=st.booleans())
    def break_off(self, seed: int, aborts: bool) -> None:
        rng = Random(seed)
        batches = self.machine.plan(rng)
        self.machine.run(batches, rng, rng.randint(0, len(batches)), aborts=aborts)

    @rule(n=seeds, paused=st.booleans())
    def pause(self, n: int, paused: bool) -> None:
        running = self.machine.residency.running
        if running:
            running[n % len(running)].paused = paused

    @rule(seed=seeds)
    def end(self, seed: int) -> None:
        running = self.machine.residency.running
        if running:
            self.machine.end(running[seed % len(running)], Random(seed))
            self.machine.check()

    @precondition(lambda self: self.made is not None)
    @rule()
    def give_way(self) -> None:
        self.machine.residency.suspend_youngest()
        self.machine.check()

    def teardown(self) -> None:
        if self.made is not None:
            self.made.check_all_end()


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
