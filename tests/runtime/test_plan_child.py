"""The process that plans: what it prints, how it ends, and that it never outlives its reader."""

import sys
from collections.abc import Callable
from signal import SIGABRT

import anyio
import psutil
import pytest

from runnerd.config import Config
from runnerd.engine.base import EngineConfig
from runnerd.errors import BadModel, ConfigError, EngineFailed, ModelMissing, Overloaded
from runnerd.plan_child import USAGE, PlanRefused, run_plan
from runnerd.plan_options import plan_arguments
from runnerd.planning import RUNNERD
from tests.daemon import PATIENCE_S
from tests.own_children import own_children

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("counts_children")]

PYTHON = [sys.executable, "-c"]
HANGS = [*PYTHON, "import signal; signal.pause()"]


def planning(model: str = "layers=1", *, n_slots: int = 1, n_ctx: int = 64) -> list[str]:
    """Return the command that plans for the reference engine."""
    config = EngineConfig(model, "reference", n_slots, n_ctx)
    return [*RUNNERD, *plan_arguments(Config(config))]


async def until(holds: Callable[[], object]) -> None:
    """Wait for another process."""
    with anyio.fail_after(PATIENCE_S):
        while not holds():
            await anyio.sleep(0.005)


async def test_a_plan_is_what_the_process_prints() -> None:
    memory = await run_plan(planning(n_ctx=64, n_slots=2), PATIENCE_S)
    assert (memory.n_ctx, memory.n_slots, memory.n_layers) == (64, 2, 1)
    assert memory.fits
    assert not own_children()


async def test_a_plan_that_does_not_fit_is_a_plan() -> None:
    huge = planning("layers=16,dim=512", n_ctx=2**30, n_slots=256)
    memory = await run_plan(huge, PATIENCE_S)
    assert not memory.fits
    assert memory.n_ctx_fits < 2**30


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (planning("layers=17"), ConfigError.exit_code, "layers=17"),
        (planning("fail_load=1"), BadModel.exit_code, "fail_load=1"),
        ([*RUNNERD, "plan", "--json", "/no/such.gguf"], ModelMissing.exit_code, "/no/such.gguf"),
        ([*RUNNERD, "plan", "--json", "--slots=many", "x"], USAGE, "--slots"),
    ],
)
async def test_what_cannot_be_planned_is_told_in_the_words_of_the_process(
    command: list[str], code: int, words: str
) -> None:
    with pytest.raises(PlanRefused, match=words) as caught:
        await run_plan(command, PATIENCE_S)
    assert caught.value.code == code
    assert not str(caught.value).startswith("runnerd:")


@pytest.mark.parametrize("script", ["print('hello')", "", "print('{}')"])
async def test_a_process_that_prints_something_else_has_failed(script: str) -> None:
    with pytest.raises(EngineFailed, match="printed no plan"):
        await run_plan([*PYTHON, script], PATIENCE_S)


async def test_one_that_prints_without_end_is_ended() -> None:
    with pytest.raises(EngineFailed, match="planning ended by SIGKILL"):
        await run_plan([*PYTHON, "while True: print('x' * 65536)"], PATIENCE_S)
    assert not own_children()


async def test_one_that_complains_without_end_of_its_plan_is_heard_to_the_end() -> None:
    script = "import sys; sys.stderr.write('x\\n' * 2**20 + 'the last'); sys.exit(70)"
    with pytest.raises(EngineFailed, match="planning ended by exit status 70: the last"):
        await run_plan([*PYTHON, script], PATIENCE_S)


async def test_a_crash_is_told_by_its_signal() -> None:
    with pytest.raises(EngineFailed, match="planning ended by SIGABRT: GGML_ASSERT") as caught:
        script = "import os, sys; print('GGML_ASSERT(n > 0) failed', file=sys.stderr); os.abort()"
        await run_plan([*PYTHON, script], PATIENCE_S)
    assert caught.value.details == {"status": -SIGABRT}


async def test_one_that_takes_too_long_is_killed_and_told() -> None:
    with pytest.raises(EngineFailed, match=r"longer than 0\.2 s") as caught:
        await run_plan(HANGS, 0.2)
    assert caught.value.details == {"timeout_s": 0.2}
    assert not own_children()


async def test_one_that_nobody_waits_for_any_more_is_killed() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_plan, HANGS, PATIENCE_S)
        await until(own_children)
        tasks.cancel_scope.cancel()
    assert not own_children()


async def test_it_is_the_first_to_end_where_memory_runs_out() -> None:
    script = """
import sys, time
while open("/proc/self/oom_score_adj").read() != "1000\\n":
    time.sleep(0.001)
sys.exit("it is")
"""
    with pytest.raises(EngineFailed, match="it is"):
        await run_plan([*PYTHON, script], PATIENCE_S)


async def test_it_goes_behind_the_daemon_with_the_cores() -> None:
    script = "import os, sys\nwhile os.nice(0) < 10: pass\nsys.exit('it does')"
    with pytest.raises(EngineFailed, match="it does"):
        await run_plan([*PYTHON, script], PATIENCE_S)


async def test_a_process_that_cannot_be_started_is_a_matter_of_load() -> None:
    with pytest.raises(Overloaded, match="No such file"):
        await run_plan(["/no/such/python"], PATIENCE_S)


async def test_nothing_of_a_plan_stays_open() -> None:
    command = [*PYTHON, "raise SystemExit(65)"]
    with pytest.raises(PlanRefused):
        await run_plan(command, PATIENCE_S)
    n_before = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(PlanRefused):
            await run_plan(command, PATIENCE_S)
    assert psutil.Process().num_fds() <= n_before
