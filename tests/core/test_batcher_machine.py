"""Any calls in any order, against a naive model; see `tests/core/simulation.py`."""

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from runnerd.core.batch import Adapter, Limits, Sampling
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Options
from runnerd.errors import EngineFailed
from tests.core.simulation import Simulation, fault_or_token
from tests.core.some_images import make_image
from tests.helpers import make_prompt

STOPS = ((), ("ab",), ("abc", "b"), ("あ", "ca"))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    n_slots = draw(st.integers(1, 5))
    n_ctx = draw(st.one_of(st.integers(2, 48), st.integers(64, 96)))
    n_batch = draw(st.integers(n_slots, 80))
    return Limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=draw(st.one_of(st.just(n_ctx), st.integers(n_ctx, n_slots * n_ctx))),
        n_batch=n_batch,
        n_ubatch=draw(st.integers(1, n_batch)),
        can_shift=draw(st.booleans()),
        is_unified=draw(st.booleans()),
        window=draw(st.sampled_from((0, 0, 0, 1, 5, 17))),
        can_rewind=draw(st.sampled_from((True, True, True, False))),
    )


images = st.builds(
    lambda name, n_rows, saved, n_tiles, flags: make_image(
        name, n_rows, max(1, n_rows - saved), n_tiles, flags
    ),
    st.integers(1, 2),
    st.integers(1, 12),
    st.integers(0, 6),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.integers(0, 7),
)
runs = st.lists(st.integers(97, 98), min_size=1, max_size=30)
# Common beginnings: worth a copy, and worth waiting for.
beginnings = st.sampled_from(([], [], [97] * 20, [97] * 20 + [98] * 30))
prompts = st.builds(
    lambda beginning, parts: make_prompt(beginning, *parts),
    beginnings,
    st.lists(st.one_of(runs, images), min_size=1, max_size=5),
)
samplings = st.sampled_from((Sampling(), Sampling(n_logprobs=0)))
options = st.builds(
    Options,
    sampling=samplings,
    max_tokens=st.one_of(st.none(), st.integers(0, 40)),
    stops=st.sampled_from(STOPS),
    n_keep=st.integers(-1, 50),
    truncate=st.booleans(),
    shift=st.booleans(),
    adapters=st.sampled_from(((), (), (), (Adapter("a"),), (Adapter("a", 0.5),))),
    cache_scope=st.sampled_from(("", "", "", "other")),
    priority=st.sampled_from(("high", "normal", "low")),
    wants_progress=st.booleans(),
)
endings = st.sampled_from(("cancelled", "timeout", EngineFailed("x")))
seeds = st.integers(0, 2**16)


class BatcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim: Simulation | None = None

    @initialize(limits=limits())
    def start(self, limits: Limits) -> None:
        self.sim = Simulation(limits)

    @rule(prompt=prompts, options=options)
    def submit(self, prompt: Prompt, options: Options) -> None:
        self.simulation.submit(prompt, options)

    @rule(prompt=prompts, tails=st.lists(runs, min_size=2, max_size=4), options=options)
    def submit_relatives(self, prompt: Prompt, tails: list[list[int]], options: Options) -> None:
        for tail in tails:
            longer = Prompt((*prompt.inputs, *tail), prompt.groups)
            self.simulation.submit(longer, options)

    @rule(n=seeds, ending=endings)
    def end(self, n: int, ending: FinishReason | EngineFailed) -> None:
        self.simulation.end(self._some_id(n), ending)

    @rule(n=seeds, paused=st.booleans())
    def pause(self, n: int, paused: bool) -> None:
        self.simulation.pause(self._some_id(n), paused=paused)

    @rule(n=seeds)
    def offer(self, n: int) -> None:
        self.simulation.offer(self._some_medium(n))

    @rule(n=seeds)
    def fail_media(self, n: int) -> None:
        self.simulation.fail_media(self._some_medium(n), EngineFailed("cannot be encoded"))

    @precondition(lambda self: self.sim is not None and self.sim.step is None)
    @rule()
    def admit(self) -> None:
        self.simulation.admit()

    @precondition(lambda self: self.sim is not None and self.sim.step is None)
    @rule()
    def plan(self) -> None:
        self.simulation.plan()

    @precondition(lambda self: self.sim is not None and self.sim.step is not None)
    @rule(seed=seeds, elapsed_ms=st.integers(0, 200))
    def commit(self, seed: int, elapsed_ms: int) -> None:
        rng = Random(seed)
        self.simulation.commit(lambda _: fault_or_token(rng.randrange(2**20)), elapsed_ms / 1e3)

    @precondition(lambda self: self.sim is not None and self.sim.step is not None)
    @precondition(lambda self: self.simulation.may_run_ahead)
    @rule(seed=seeds)
    def follow(self, seed: int) -> None:
        rng = Random(seed)
        self.simulation.follow(lambda _: fault_or_token(rng.randrange(2**20)), 0.01)

    @precondition(lambda self: self.sim is not None and self.sim.step is None)
    @rule(seed=seeds, n_steps=st.integers(1, 20))
    def run(self, seed: int, n_steps: int) -> None:
        for n in range(n_steps):
            if not self.simulation.plan():
                return
            self.commit(seed + n, n % 3 * 20)

    @precondition(lambda self: self.sim is not None and self.sim.step is not None)
    @rule(seed=seeds, share=st.floats(0, 0.99))
    def back_off(self, seed: int, share: float) -> None:
        rng = Random(seed)
        step = self.simulation.step
        assert step is not None
        n_batches = int(len(step.batches) * share)
        self.simulation.back_off(lambda _: fault_or_token(rng.randrange(2**20)), n_batches)

    @precondition(lambda self: self.sim is not None and self.sim.step is not None)
    @rule(n=seeds, seed=seeds, share=st.floats(0, 0.99))
    def abort(self, n: int, seed: int, share: float) -> None:
        rng = Random(seed)
        step = self.simulation.step
        assert step is not None
        spans = [span for batch in step.batches for span in batch.spans]
        self.simulation.end(spans[n % len(spans)].seq_id, "cancelled")
        n_batches = int(len(step.batches) * share)
        self.simulation.abort(lambda _: fault_or_token(rng.randrange(2**20)), n_batches, rng)

    def teardown(self) -> None:
        if self.sim is not None:
            rng = Random(0)
            self.sim.drain(lambda _: rng.choice((97, 98, 99, 0, 0xE3)))
            self.sim.replay()

    @property
    def simulation(self) -> Simulation:
        assert self.sim is not None
        return self.sim

    def _some_id(self, n: int) -> int:
        """Return the id of a live sequence, or now and then an unknown one."""
        live = [*self.simulation.live, 0]
        return live[n % len(live)]

    def _some_medium(self, n: int) -> int:
        """Return the id of a medium that is wanted, or now and then an unknown one."""
        wanted = [*self.simulation.wanted(), 0]
        return wanted[n % len(wanted)]


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
