import signal

import pytest

from runnerd.death import (
    FINAL,
    Cause,
    ChildDied,
    CrashLoop,
    Death,
    Told,
    cause_of,
    describe_exit,
    describe_memory,
)
from runnerd_protocol.messages import DeviceMemory, FailedAllocation, Memory

MIB = 2**20


@pytest.mark.parametrize(
    ("returncode", "cause", "words"),
    [
        (0, "stopped", "told to stop (exit status 0)"),
        (1, "internal", "did not get as far"),
        (64, "usage", "options"),
        (65, "bad_model", "model cannot be used"),
        (66, "model_missing", "no such model"),
        (70, "internal", "internal error"),
        (71, "out_of_memory", "out of memory"),
        (78, "config", "setting"),
        (99, "unknown", "unknown cause (exit status 99)"),
        (255, "unknown", "unknown cause (exit status 255)"),
        (-signal.SIGSEGV, "crashed", "it crashed (SIGSEGV)"),
        (-signal.SIGILL, "crashed", "it crashed (SIGILL)"),
        (-signal.SIGABRT, "aborted", "aborted (SIGABRT)"),
        (-signal.SIGBUS, "bus_error", "cut short, or a disk failed"),
        (-signal.SIGHUP, "killed", "it was killed by SIGHUP"),
        (-(signal.SIGRTMIN + 1), "killed", f"killed by signal {signal.SIGRTMIN + 1}"),
        (128 + signal.SIGSEGV, "crashed", "it crashed (SIGSEGV)"),  # what a shell makes of it
    ],
)
def test_an_exit_status_is_put_into_words(returncode: int, cause: Cause, words: str) -> None:
    assert cause_of(returncode) == cause
    assert words in describe_exit(returncode)


def test_an_abort_for_want_of_memory_is_told_as_that() -> None:
    said = "what():  std::bad_alloc"
    assert cause_of(-signal.SIGABRT, said=said) == "out_of_memory"
    assert describe_exit(-signal.SIGABRT, said=said) == "out of memory (SIGABRT)"


@pytest.mark.parametrize(
    ("n_oom_kills", "cause", "words"),
    [
        (None, "killed", "killed by SIGKILL, perhaps because memory ran out"),
        (0, "killed", "it was killed by SIGKILL"),
        (1, "oom_killed", "the system has killed it because memory ran out (SIGKILL)"),
    ],
)
def test_a_kill_for_want_of_memory_is_told_where_it_was_counted(
    n_oom_kills: int | None, cause: Cause, words: str
) -> None:
    assert cause_of(-signal.SIGKILL, n_oom_kills=n_oom_kills) == cause
    assert describe_exit(-signal.SIGKILL, n_oom_kills=n_oom_kills).endswith(words)


@pytest.mark.parametrize("returncode", [0, 70, -signal.SIGTERM])
def test_an_end_that_we_have_brought_about_is_not_put_down_to_the_child(returncode: int) -> None:
    words = describe_exit(returncode, signal.SIGTERM)
    assert words.startswith("it did not end by itself and was sent SIGTERM (")
    assert "internal" not in words
    assert "memory" not in words
    assert cause_of(returncode, signal.SIGTERM) == "stopped"


def test_what_was_told_to_stop_and_is_killed_by_others_was_not_stopped() -> None:
    assert cause_of(-signal.SIGKILL, signal.SIGTERM, "stop") == "killed"
    assert cause_of(-signal.SIGKILL, signal.SIGTERM, "stop", 1) == "oom_killed"
    assert cause_of(-signal.SIGKILL, signal.SIGKILL, "stop") == "stopped"


@pytest.mark.parametrize(
    ("returncode", "sent", "cause"),
    [
        (0, None, "cut_off"),
        (70, None, "internal"),
        (-signal.SIGTERM, signal.SIGTERM, "cut_off"),
        (-signal.SIGSEGV, None, "crashed"),
    ],
)
def test_an_end_of_its_connection_is_the_cause_of_an_orderly_end_alone(
    returncode: int, sent: signal.Signals | None, cause: Cause
) -> None:
    assert cause_of(returncode, sent, "end") == cause
    assert ("connection was given up" in describe_exit(returncode, sent, "end")) == (
        cause == "cut_off"
    )


@pytest.mark.parametrize("told", ["", "stop"])
def test_a_crash_on_the_way_to_the_end_is_a_crash(told: Told) -> None:
    facts = -signal.SIGSEGV, signal.SIGTERM, told
    assert cause_of(*facts) == "crashed"
    assert "crashed (SIGSEGV)" in describe_exit(*facts)


def test_one_that_was_killed_because_it_did_not_stop_is_told_from_one_that_did() -> None:
    assert "told to stop (exit" in describe_exit(0, signal.SIGTERM, "stop")
    assert "had to be sent SIGKILL" in describe_exit(-signal.SIGKILL, signal.SIGKILL, "stop")


def test_one_that_was_killed_for_its_stall_is_told_so() -> None:
    number = signal.SIGKILL
    assert cause_of(-number, number, "stall", 3) == "stalled"
    words = describe_exit(-number, number, "stall", 3)
    assert words == "nothing moved, and it was killed (SIGKILL)"


def make_memory(**options: int | FailedAllocation) -> Memory:
    device = DeviceMemory(
        "cpu", "CPU", "cpu", 100 * MIB, 60 * MIB, weight_bytes=90 * MIB, kv_bytes=20 * MIB
    )
    return Memory(
        model="m",
        architecture="llama",
        n_ctx=4096,
        n_slots=2,
        n_cells=8192,
        n_batch=512,
        n_ubatch=512,
        kv="split",
        kv_type="f16",
        n_layers=2,
        n_gpu_layers=0,
        input_bytes=10 * MIB,
        layers=[],
        devices=[device],
        fits=False,
        **options,  # type: ignore[arg-type]
    )


def test_what_was_wanted_of_memory_is_told_in_short() -> None:
    failed = FailedAllocation("the KV cache", "cpu", 20 * MIB)
    assert describe_memory(make_memory(n_ctx_fits=1024, failed=failed)) == (
        "it takes 120 MiB with ctx 4096 x 2, 60 MiB were free; there was no room for the KV cache"
        " of 20 MiB; ctx 1024 would fit"
    )


def test_a_death_is_told_in_one_line_with_all_that_is_known() -> None:
    death = Death(1, 71, "out_of_memory", "out of memory (exit status 71)", "no room", ("x",))
    assert str(ChildDied(death)) == "the daemon has ended: out of memory (exit status 71): no room"
    during = Death(1, -9, "killed", "it was killed by SIGKILL", phase="weights")
    assert str(during) == "it was killed by SIGKILL, while it loaded the model (weights)"
    with_memory = Death(1, 71, "out_of_memory", "out of memory", memory=make_memory())
    assert "; it takes 120 MiB" in str(with_memory)


def test_a_crash_loop_is_a_death_that_has_the_numbers() -> None:
    death = Death(1, -9, "killed", "it was killed by SIGKILL")
    loop = CrashLoop(death, 3, 60.0)
    assert isinstance(loop, ChildDied)
    assert "restarted 3 times within 60 s" in str(loop)
    assert "killed by SIGKILL" in str(loop)
    assert loop.cause not in FINAL
