"""How long statuses are waited for: the probe that asks, and the bars."""

from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from loadtest.bars import missed
from loadtest.health.measuring import MOST_MS, HealthOutcome, Waits, health_bars
from loadtest.health.probe import Probe, probing
from loadtest.health.text import health_text
from tests.daemon import PATIENCE_S, running_daemon

N_ASKED = 5


@pytest.mark.anyio
async def test_waits_are_counted_for_what_the_daemon_does_meanwhile() -> None:
    async with running_daemon() as daemon:
        probe = Probe(daemon.path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, probe.run)
            with probe.during("idle"):
                await daemon.until(lambda: len(probe.waits_ms.get("idle", ())) >= N_ASKED)
            with probe.during("busy"):
                await daemon.until(lambda: len(probe.waits_ms.get("busy", ())) >= N_ASKED)
            probe.end()
        assert probe.error is None
        assert all(
            0 < each < PATIENCE_S * 1e3 for waits in probe.waits_ms.values() for each in waits
        )


def test_a_probe_that_finds_nobody_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), probing(tmp_path / "nobody"):
        pass


def test_a_status_that_comes_late_misses_its_bar() -> None:
    soon = Waits("idle", 100, 1.0, MOST_MS, 900.0)
    late = Waits("images are encoded", 100, 1.0, MOST_MS + 1, 900.0)
    outcome = HealthOutcome([soon, late], health_bars([soon, late]))
    assert [bar.name for bar in missed(outcome.bars)] == [
        "status while images are encoded, p99, ms"
    ]
    text = health_text(outcome)
    assert "| idle " in text
    assert "| NO" in text.replace("  ", " ")
