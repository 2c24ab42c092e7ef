"""The simulation: its accounts add up, and an unfair scheduler is seen to be one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadtest.rates import jain
from loadtest.simulation.running import Simulation
from loadtest.simulation.service import Service
from loadtest.simulation.step_recording import record
from loadtest.simulation.step_times import (
    CPU,
    H100,
    H100_PUBLISHED,
    StepSize,
    StepTimes,
    fit,
)
from loadtest.simulation.summary import GPU_LOAD, simulate, summed_up
from loadtest.simulation.text import simulated_text
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig

SMALL = replace(
    GPU_LOAD, n_slots=8, n_cells=8 * 2048, n_requests=60, arrivals_per_s=100.0, target_itl_ms=20.0
)


@pytest.fixture(scope="module")
def ended() -> Simulation:
    simulation = Simulation(SMALL)
    simulation.run()
    return simulation


def test_every_request_gets_the_tokens_that_it_asked_for(ended: Simulation) -> None:
    assert len(ended.told) == SMALL.n_requests
    for told in ended.told.values():
        assert told.ended == "length"
        assert told.n_generated == told.max_tokens
    ended.batcher.check()
    assert ended.batcher.seq_ids == ()


def test_every_prompt_row_is_evaluated_once(ended: Simulation) -> None:
    assert ended.batcher.n_prefilled == sum(told.n_prompt for told in ended.told.values())


def test_gaps_are_those_between_all_tokens(ended: Simulation) -> None:
    n_generated = sum(told.n_generated for told in ended.told.values())
    assert len(ended.gaps_s) == n_generated - SMALL.n_requests
    lasted_s = sum(told.last_at - told.first_at for told in ended.told.values())
    assert sum(ended.gaps_s) == pytest.approx(lasted_s)


def test_instants_are_in_order_and_time_is_that_of_the_steps(ended: Simulation) -> None:
    for told in ended.told.values():
        slot_at = told.asked_at + told.queue_s
        assert told.asked_at <= slot_at <= told.first_at <= told.last_at <= ended.now
    assert sum(ended.step_s) <= ended.now


def test_the_same_seed_gives_the_same_simulation(ended: Simulation) -> None:
    again = Simulation(SMALL)
    again.run()
    assert again.told == ended.told
    assert again.step_s == ended.step_s


def test_what_is_summed_up_is_what_happened(ended: Simulation) -> None:
    simulated = summed_up(ended)
    assert simulated.n_ended == SMALL.n_requests
    assert simulated.n_steps == len(ended.step_s)
    assert simulated.jain == pytest.approx(1.0)
    assert simulated.itl_max_ms >= simulated.itl_p99_ms >= simulated.itl_p50_ms > 0
    assert "Jain" in simulated_text([simulated])


def test_a_scheduler_that_holds_some_back_gets_a_bad_index() -> None:
    unfair = Simulation(replace(SMALL, n_requests=40))
    while unfair.step():
        running = [sequence.seq_id for sequence in unfair.batcher.residency.running]
        has_favourite = any(seq_id % 2 == 0 for seq_id in running)
        is_their_turn = len(unfair.step_s) % 8 == 0
        for seq_id in running:
            held_back = seq_id % 2 == 1 and has_favourite and not is_their_turn
            unfair.batcher.pause(seq_id, paused=held_back)
    simulated = summed_up(unfair)
    assert simulated.n_ended == 40
    assert simulated.jain < 0.9
    assert simulated.service_ratio > 2
    assert not all(bar.is_met for bar in simulated.bars if "Jain" in bar.name)


def test_one_request_alone_can_be_summed_up() -> None:
    simulated = simulate(replace(SMALL, n_requests=1))
    assert simulated.n_ended == 1
    assert simulated.jain == 1.0


# --- service ---------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 5), unique=True), max_size=30))
def test_all_that_is_served_is_due_to_somebody(steps: list[list[int]]) -> None:
    service = Service()
    service.enter(range(6))
    for step in steps:
        service.serve(step)
    left = [service.leave(number) for number in range(6)]
    n_served = sum(map(len, steps))
    assert sum(got for got, _ in left) == n_served
    assert sum(due for _, due in left) == pytest.approx(n_served)


def test_who_comes_later_is_due_nothing_of_what_was_before() -> None:
    service = Service()
    service.enter([0])
    service.serve([0])
    service.enter([1])
    service.serve([0, 1])
    assert service.leave(1) == (1, 1.0)
    assert service.leave(0) == (2, 2.0)


def test_a_favourite_shows_in_the_shares() -> None:
    service = Service()
    service.enter(range(4))
    for _ in range(100):
        service.serve([0])
    shares = [got / due for got, due in map(service.leave, range(4))]
    assert jain(shares) == pytest.approx(0.25)


# --- step times ------------------------------------------------------------------------------


def test_a_fit_finds_the_times_that_steps_were_made_of() -> None:
    times = StepTimes(about="", base_s=0.01, row_s=0.002, cell_s=3e-5, pair_s=2e-7)
    sizes = [StepSize(n, 40 * n + past, n * past) for n in (1, 4, 16, 300) for past in (10, 900)]
    found = fit(sizes, [times.of(size) for size in sizes], "made")
    for name in ("base_s", "row_s", "cell_s", "pair_s"):
        assert getattr(found, name) == pytest.approx(getattr(times, name), rel=1e-6)


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.integers(1, 999), st.floats(0.001, 9.0)),
        min_size=1,
        max_size=9,
    )
)
def test_no_fitted_time_is_negative(steps: list[tuple[int, int, float]]) -> None:
    sizes = [StepSize(n_rows, n_cells, n_rows * n_cells) for n_rows, n_cells, _ in steps]
    found = fit(sizes, [seconds for _, _, seconds in steps], "")
    assert min(found.base_s, found.row_s, found.cell_s, found.pair_s) >= 0


@pytest.mark.parametrize(("n_streams", "n_prompt", "n_generated", "published"), H100_PUBLISHED)
def test_the_gpu_comes_close_to_what_was_published(
    n_streams: int, n_prompt: int, n_generated: int, published: float
) -> None:
    n_rows = n_streams * n_prompt
    prefill_s = H100.of(StepSize(n_rows, n_rows, 0))
    decode_s = sum(
        H100.of(StepSize(n_streams, n_streams * (n_prompt + n), 0)) for n in range(1, n_generated)
    )
    tokens_per_s = n_streams * n_generated / (prefill_s + decode_s)
    assert tokens_per_s == pytest.approx(published, rel=0.06)


def test_more_rows_and_more_cells_take_a_cpu_longer() -> None:
    few, many = CPU.of(StepSize(1, 100, 100)), CPU.of(StepSize(8, 100, 100))
    assert 0 < few < many < CPU.of(StepSize(8, 4000, 4000))


def test_an_engine_is_run_through_the_shapes() -> None:
    config = EngineConfig(model="layers=1", engine="reference", n_slots=4, n_ctx=64)
    engine = open_engine(config, lambda _phase, _fraction: True)
    told: list[str] = []
    times = record(engine, [(1, 20), (4, 10)], "toy", told.append)
    assert told[-1].endswith("16 sizes of steps")  # a prompt and 7 tokens for each shape
    assert max(times.base_s, times.row_s, times.cell_s, times.pair_s) > 0
    assert "toy" in times.about
    engine.close()
