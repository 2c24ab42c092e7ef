"""The number of threads, on simulated machines that other processes use too."""

import random

import pytest

from runnerd.engine.thread_governor import PassTime, ThreadGovernor
from tests.engine.shared_machine import BUSY, NICE, WHOLE, SharedMachine, always, by_turns

DECODES = (1, 4, 8, 16)


def mixed_rows(n: int = 400, seed: int = 0) -> list[int]:
    """Rows of passes that evaluate prompts of all lengths between those that only generate."""
    numbers = random.Random(seed)
    return [numbers.choice((1, 4, 8, 8, 9, 40, 130, 512)) for _ in range(n)]


@pytest.mark.parametrize("n_cores", [2, 4, 16])
@pytest.mark.parametrize("noise", [2, 20])
@pytest.mark.parametrize("rows", [[1], [8], mixed_rows()], ids=["1", "8", "mixed"])
def test_on_an_idle_machine_all_threads_stay(n_cores: int, noise: float, rows: list[int]) -> None:
    machine = SharedMachine(n_cores, noise=noise)
    machine.run(ThreadGovernor(n_cores), rows, until=40)
    assert machine.full_s >= 0.99 * machine.now


@pytest.mark.parametrize("n_rows", DECODES)
def test_beside_a_busy_process_one_core_of_two_is_left_to_it(n_rows: int) -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, always(BUSY))
    machine.run(governor, [n_rows], until=30)
    assert governor.n_threads == 1
    assert machine.work_s >= 0.45 * machine.now


def test_rows_of_any_number_in_turn_do_not_hide_a_busy_process() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, always(BUSY))
    machine.run(governor, mixed_rows(), until=30)
    assert governor.n_threads == 1
    assert machine.work_s >= 0.4 * machine.now


def test_a_busy_process_is_noticed_within_one_pass_that_collapses() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, always(BUSY))
    machine.run(governor, [8], until=0.2)
    assert governor.n_threads == 1


def test_all_threads_come_back_soon_after_the_busy_process_is_gone() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, lambda now: (BUSY,) if 5 <= now < 25 else ())
    machine.run(governor, [8], until=25)
    assert governor.n_threads == 1
    machine.run(governor, [8], until=28)
    assert governor.n_threads == 2


def test_a_process_that_takes_a_tenth_of_a_core_is_lived_with() -> None:
    machine = SharedMachine(2, always(NICE))
    machine.run(ThreadGovernor(2), [8], until=30)
    assert machine.full_s >= 0.95 * machine.now


@pytest.mark.parametrize("rows", [[1], [8], mixed_rows()], ids=["1", "8", "mixed"])
def test_a_process_that_takes_its_tenth_of_a_core_in_lumps_is_lived_with(rows: list[int]) -> None:
    machine = SharedMachine(2, by_turns(0.004, 0.04, WHOLE))
    machine.run(ThreadGovernor(2), rows, until=30)
    assert machine.full_s >= 0.9 * machine.now


@pytest.mark.parametrize("period_s", [0.05, 0.4, 1.0, 5.0])
def test_a_process_that_comes_and_goes_costs_no_more_than_a_core(period_s: float) -> None:
    machine = SharedMachine(2, by_turns(period_s, period_s, BUSY))
    machine.run(ThreadGovernor(2), [8], until=40)
    assert machine.work_s >= 0.43 * machine.now


def test_long_pauses_of_a_busy_process_are_used() -> None:
    machine = SharedMachine(2, by_turns(10, 30, BUSY))
    machine.run(ThreadGovernor(2), [8], until=120)
    assert machine.work_s >= 0.8 * machine.now


def test_more_busy_processes_than_cores_are_answered_with_one_thread() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, always(BUSY, BUSY))
    machine.run(governor, [8], until=30)
    assert governor.n_threads == 1


@pytest.mark.parametrize(("n_busy", "n_left"), [(1, 7), (3, 5), (6, 2), (12, 1)])
def test_on_many_cores_others_get_as_many_as_they_keep_busy(n_busy: int, n_left: int) -> None:
    governor = ThreadGovernor(8)
    machine = SharedMachine(8, always(*[BUSY] * n_busy))
    machine.run(governor, [8], until=30)
    assert governor.n_threads == n_left


def test_on_many_cores_all_threads_come_back() -> None:
    governor = ThreadGovernor(8)
    machine = SharedMachine(8, lambda now: [BUSY] * 6 if now < 10 else [])
    machine.run(governor, [8], until=15)
    assert governor.n_threads == 8


def test_more_threads_than_cores_are_not_kept() -> None:
    governor = ThreadGovernor(4)
    machine = SharedMachine(2, always(), noise=0)
    passed = PassTime("decode", 8, 0.5, 1.0)  # 4 threads on two cores
    machine.rest(1)
    governor.observe(passed, 0.5)
    assert governor.n_threads == 2


@pytest.mark.parametrize(("n_rows", "until", "least"), [(8, 40, 0.95), (512, 300, 0.8)])
@pytest.mark.parametrize("quota", [0.5, 1.0, 1.5])
def test_under_a_quota_of_cpu_time_the_faster_number_is_kept(
    quota: float, n_rows: int, until: float, least: float
) -> None:
    machine = SharedMachine(2, quota=quota)
    machine.run(ThreadGovernor(2), [n_rows], until=until)
    assert machine.work_s >= least * quota / 2 * machine.now


def test_threads_that_sleep_while_they_wait_are_not_taken_for_missing_ones() -> None:
    machine = SharedMachine(2, sleeps=0.4)
    machine.run(ThreadGovernor(2), [8], until=30)
    assert machine.full_s >= 0.96 * machine.now


def test_a_busy_process_is_noticed_beside_threads_that_sleep() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, lambda now: (BUSY,) if now > 10 else (), sleeps=0.4)
    machine.run(governor, [8], until=40)
    assert governor.n_threads == 1


def test_after_hours_without_a_pass_the_first_ones_find_the_free_core() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, lambda now: (BUSY,) if now < 10 else ())
    machine.run(governor, [8], until=9)
    machine.rest(7200)
    machine.run(governor, [8], until=machine.now + 0.2)
    assert governor.n_threads == 2


def test_where_no_passes_can_be_compared_fewer_threads_stay_until_a_core_is_free() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, lambda now: (BUSY,) if now < 5 else ())
    rows = [int(1.2**power) for power in range(12, 36)]
    machine.run(governor, rows, until=5)
    assert governor.n_threads == 1
    machine.run(governor, rows, until=12)
    assert governor.n_threads == 2


def test_what_took_a_core_for_some_milliseconds_is_not_answered() -> None:
    governor = ThreadGovernor(2)
    governor.observe(PassTime("decode", 8, 0.053, 0.086), 0.053)
    assert governor.n_threads == 2


def test_what_was_tolerated_once_is_not_tolerated_for_ever() -> None:
    governor = ThreadGovernor(2)
    with_quota = SharedMachine(2, quota=1.3)
    with_quota.run(governor, [8], until=20)
    assert governor.n_threads == 2
    beside = SharedMachine(2, lambda now: (BUSY,) if now > 150 else ())
    beside.run(governor, [8], until=160)
    assert governor.n_threads == 1


def test_a_single_thread_is_left_alone() -> None:
    governor = ThreadGovernor(1)
    SharedMachine(2, always(BUSY, BUSY, BUSY)).run(governor, [8], until=20)
    assert governor.n_threads == 1
    assert not governor.wants_probe(20)


def test_a_clock_that_stands_still_is_survived() -> None:
    governor = ThreadGovernor(2)
    governor.observe(PassTime("decode", 8, 0.0, 0.0), 1.0)
    assert governor.n_threads == 2


def test_a_late_answer_of_a_probe_changes_nothing() -> None:
    governor = ThreadGovernor(2)
    governor.take_probe(1.0, 5.0)
    assert governor.n_threads == 2


def test_passes_for_embeddings_are_not_compared_with_those_of_a_generation() -> None:
    governor = ThreadGovernor(2)
    governor.observe(PassTime("decode", 8, 0.5, 0.7), 0.5)
    assert governor.n_threads == 1
    for number in range(10):
        governor.observe(PassTime("embed", 8, 0.7, 0.7), 1.2 + 0.7 * number)
    assert governor.n_threads == 1


@pytest.mark.parametrize("n_threads", [2, 4, 16])
def test_a_pass_beside_a_busy_process_is_to_be_stopped_within_a_second(n_threads: int) -> None:
    governor = ThreadGovernor(n_threads)
    looks = [0.05 * number for number in range(1, 21)]
    stops = [governor.should_stop(wall_s, (n_threads - 0.5) * wall_s, wall_s) for wall_s in looks]
    assert not any(stops[:6])
    assert stops[-1]


@pytest.mark.parametrize("n_threads", [2, 8, 64])
def test_cpu_time_that_is_not_counted_yet_stops_no_pass(n_threads: int) -> None:
    governor = ThreadGovernor(n_threads)
    lag_s = 0.004 * (n_threads - 1)  # a tick of the system, of all threads but the one that asks
    looks = (0.05, 0.1, 0.5, 2.0)
    assert not any(governor.should_stop(s, n_threads * s - lag_s, s) for s in looks)


def test_a_pass_that_has_done_much_is_not_stopped_for_little() -> None:
    governor = ThreadGovernor(2)
    lost_s = 0.4  # beyond what is tolerated, at most
    assert governor.should_stop(1.0, 2.0 - 0.25 - lost_s, 1.0)
    assert not governor.should_stop(5.0, 10.0 - 5 * 0.25 - lost_s, 5.0)


def test_a_pass_whose_threads_have_their_cores_is_not_stopped() -> None:
    governor = ThreadGovernor(2)
    assert not governor.should_stop(60.0, 119.0, 60.0)


def test_a_pass_of_one_thread_is_not_stopped() -> None:
    governor = ThreadGovernor(1)
    assert not governor.should_stop(60.0, 1.0, 60.0)


def test_what_was_not_worth_fewer_threads_is_not_worth_a_stop() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, quota=1.3)
    machine.run(governor, [8], until=20)
    assert governor.n_threads == 2
    assert not governor.should_stop(2.0, 2.6, machine.now)


def test_a_busy_process_stops_a_pass_hours_after_something_else_was_tolerated() -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, quota=1.3)
    machine.run(governor, [8], until=20)
    machine.rest(7200)
    assert governor.should_stop(1.0, 1.5, machine.now)


def test_after_a_pass_that_was_stopped_there_are_fewer_threads_whatever_was_lost() -> None:
    governor = ThreadGovernor(4)
    governor.observe(PassTime("decode", 512, 0.5, 2.0, is_whole=False), 0.5)
    assert governor.n_threads == 3


def test_passes_are_not_compared_with_one_that_was_stopped() -> None:
    governor = ThreadGovernor(2)
    governor.observe(PassTime("decode", 512, 0.5, 0.7, is_whole=False), 0.5)
    for number in range(10):
        governor.observe(PassTime("decode", 512, 4.0, 4.0), 4.5 + 4.0 * number)
    assert governor.n_threads == 1


@pytest.mark.parametrize("n_rows", [512, 2048])
def test_long_passes_beside_a_busy_process_do_not_collapse(n_rows: int) -> None:
    governor = ThreadGovernor(2)
    machine = SharedMachine(2, always(BUSY))
    machine.run(governor, [n_rows], until=60)
    assert governor.n_threads == 1
    assert machine.work_s >= 0.42 * machine.now


def test_long_passes_of_threads_that_sleep_have_the_faster_number() -> None:
    machine = SharedMachine(2, sleeps=0.4)
    machine.run(ThreadGovernor(2), [512], until=300)
    assert machine.work_s >= 0.8 * machine.now
