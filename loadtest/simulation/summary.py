"""Simulations, summed up: what a step costs the host, who waits, and whether equals are equal."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from loadtest.bars import Bar, at_least, at_most
from loadtest.rates import jain, percentile
from loadtest.simulation.running import SimulatedLoad, Simulation, Told
from loadtest.simulation.step_times import CPU, H100

MOST_PLAN_MS = 2.0
LEAST_JAIN = 0.98
MOST_GAP = 5.0  # median steps x slots
SHORT_PROMPT = 100  # tokens, at most

GPU_LOAD = SimulatedLoad(
    name="gpu",
    times=H100,
    n_slots=256,
    n_cells=256_000,  # of 256 KB: what 80 GB hold beside the weights
    n_requests=10_000,
    arrivals_per_s=75.0,
    target_itl_ms=30.0,
)
CPU_LOAD = SimulatedLoad(
    name="cpu",
    times=CPU,
    n_slots=8,
    n_cells=8 * 2048,
    n_requests=500,
    arrivals_per_s=0.12,
    target_itl_ms=200.0,
)


class Simulated(Struct, frozen=True, kw_only=True):
    """What came of a load.

    `plan_` and `commit_` are the host's time, over the steps with every slot taken, or over all
    steps if there was none. All other times are the model's. `host_share`: the host's to those of
    steps.

    `service_ratio`: the greatest to the least share that a request got of what was due to it
    while it generated. `longest_gap`: the longest time between two tokens of a request, in median
    steps x slots.
    """

    load: SimulatedLoad
    n_steps: int
    n_full_steps: int
    n_ended: int
    n_generated: int
    n_suspended: int
    lasted_s: float
    tokens_per_s: float
    step_p50_ms: float
    plan_p50_ms: float
    plan_p99_ms: float
    commit_p50_ms: float
    commit_p99_ms: float
    host_share: float
    queue_p50_s: float
    queue_p99_s: float
    queue_max_s: float
    prefill_p50_s: float
    prefill_p99_s: float
    short_prefill_p99_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    within_target: float
    jain: float
    service_ratio: float
    longest_gap: float
    bars: list[Bar]


def simulate(load: SimulatedLoad) -> Simulated:
    """Run a load to its end, and sum it up."""
    simulation = Simulation(load)
    simulation.run()
    return summed_up(simulation)


def summed_up(simulation: Simulation) -> Simulated:
    """Sum up a simulation that has come to its end."""
    load = simulation.load
    ended = [told for told in simulation.told.values() if told.ended]
    n_generated = sum(told.n_generated for told in ended)
    queued = [told.queue_s for told in ended]
    gaps_ms = [gap_s * 1e3 for gap_s in simulation.gaps_s]
    step_s = median(simulation.step_s)
    is_full = [n_running == load.n_slots for n_running in simulation.n_running]
    if not any(is_full):
        is_full = [True] * len(is_full)
    plan_ms = _in_ms(simulation.plan_s, is_full)
    commit_ms = _in_ms(simulation.commit_s, is_full)
    host_s = sum(simulation.plan_s) + sum(simulation.commit_s)
    shares = simulation.shares
    n_within = sum(gap_ms <= load.target_itl_ms for gap_ms in gaps_ms)
    gap_s = max((told.longest_gap_s for told in ended), default=0.0)
    fair, longest_gap = jain(shares), gap_s / (step_s * load.n_slots)
    return Simulated(
        load=load,
        n_steps=len(simulation.step_s),
        n_full_steps=sum(n_running == load.n_slots for n_running in simulation.n_running),
        n_ended=len(ended),
        n_generated=n_generated,
        n_suspended=simulation.n_suspended,
        lasted_s=simulation.now,
        tokens_per_s=n_generated / simulation.now,
        step_p50_ms=step_s * 1e3,
        plan_p50_ms=percentile(plan_ms, 50),
        plan_p99_ms=percentile(plan_ms, 99),
        commit_p50_ms=percentile(commit_ms, 50),
        commit_p99_ms=percentile(commit_ms, 99),
        host_share=host_s / sum(simulation.step_s),
        queue_p50_s=percentile(queued, 50),
        queue_p99_s=percentile(queued, 99),
        queue_max_s=max(queued),
        prefill_p50_s=percentile([*map(_prefill_s, ended)], 50),
        prefill_p99_s=percentile([*map(_prefill_s, ended)], 99),
        short_prefill_p99_s=percentile(
            [_prefill_s(told) for told in ended if told.n_prompt <= SHORT_PROMPT], 99
        ),
        itl_p50_ms=percentile(gaps_ms, 50),
        itl_p99_ms=percentile(gaps_ms, 99),
        itl_max_ms=max(gaps_ms, default=0.0),
        within_target=n_within / len(gaps_ms) if gaps_ms else 1.0,
        jain=fair,
        service_ratio=max(shares) / min(shares) if shares else 1.0,
        longest_gap=longest_gap,
        bars=_bars(load, percentile(plan_ms, 50), fair, longest_gap),
    )


def _bars(load: SimulatedLoad, plan_ms: float, fair: float, longest_gap: float) -> list[Bar]:
    return [
        at_most(f"{load.name}: plan at {load.n_slots} sequences, ms", plan_ms, MOST_PLAN_MS),
        at_least(f"{load.name}: Jain index", fair, LEAST_JAIN),
        at_most(f"{load.name}: longest gap, in median steps x slots", longest_gap, MOST_GAP),
    ]


def _in_ms(seconds: Sequence[float], is_counted: Sequence[bool]) -> list[float]:
    return [each * 1e3 for each, counts in zip(seconds, is_counted, strict=True) if counts]


def _prefill_s(told: Told) -> float:
    """Return the time from the slot to the first token."""
    return told.first_at - told.asked_at - told.queue_s
