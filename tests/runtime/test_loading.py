"""What is told of a load while it goes on, and of one that ends for two reasons at once."""

from itertools import pairwise
from time import monotonic

import anyio
import pytest

from runnerd.client import connect
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine
from runnerd.errors import BadModel, LoadCancelled
from runnerd_protocol.messages import Accepted, Failed, Generate
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import GatedLoad

pytestmark = pytest.mark.anyio

MOVING_S = 0.2  # statuses come at least this often while a load moves
NOISE_S = 1.0  # of a machine that has other things to do
NEVER_S = 3600.0  # the interval of who is only told of changes
PHASES = ["open", "weights", "context", "warm-up"]


async def test_whoever_watches_hears_of_a_load_that_moves_five_times_a_second() -> None:
    told: list[tuple[int, float]] = []
    heard_at: list[float] = []
    async with (
        running_daemon("layers=0,load_ms=2400", waits_for_load=False) as daemon,
        connect(daemon.path) as client,
        client.subscribe(NEVER_S) as statuses,
    ):
        with anyio.fail_after(PATIENCE_S):
            async for status in statuses:
                if status.state == "ready":
                    break
                heard_at.append(monotonic())
                told.append((PHASES.index(status.load_phase or "open"), status.load_fraction))
    gaps = [after - before for before, after in pairwise(heard_at)]
    assert max(gaps) < MOVING_S + NOISE_S
    assert sorted(gaps)[len(gaps) // 2] < MOVING_S
    assert all(before <= after for before, after in pairwise(told))
    assert {at for at, _ in told} == {0, 1, 2, 3}


class FailsWhenStopped:
    """A loader that runs into an error at the moment it is told to end."""

    def __call__(self, config: EngineConfig, progress: LoadProgress) -> ReferenceEngine:
        while progress("weights", 0.5):
            pass
        raise BadModel("cut short")


async def test_an_error_of_a_load_that_was_told_to_end_is_what_is_told() -> None:
    async with (
        running_daemon(load=FailsWhenStopped(), waits_for_load=False) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x"))
        await client.receive_a(Accepted, 1)
        daemon.runner.stop()
        assert (await client.receive_a(Failed, 1)).code == "shutting_down"
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert isinstance(daemon.error, BadModel)
        assert daemon.runner.state == "failed"
        assert daemon.runner.failure is not None
        assert daemon.runner.failure.code == "bad_model"


async def test_a_stop_after_an_error_hides_nothing_of_it() -> None:
    load = GatedLoad(BadModel("cut short"))
    async with running_daemon(load=load, waits_for_load=False) as daemon:
        load.let_go()  # the error is on its way, and nobody here has looked yet
        daemon.runner.stop()
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert isinstance(daemon.error, BadModel)
        assert daemon.runner.failure is not None
        assert daemon.runner.failure.text == "cut short"


async def test_a_load_that_was_told_to_end_and_does_has_not_failed() -> None:
    async with running_daemon("layers=0,load_ms=8000", waits_for_load=False) as daemon:
        await daemon.until(lambda: daemon.runner.loading.phase == "open")
        daemon.runner.stop()
        with anyio.fail_after(PATIENCE_S):
            await daemon.has_ended.wait()
        assert isinstance(daemon.error, LoadCancelled)
        assert daemon.runner.state == "stopped"
        assert daemon.runner.failure is None
