import pytest

from runnerd.commands.prometheus import prometheus_text
from runnerd.commands.status_text import (
    busy_slots,
    error_text,
    prompt_text,
    queue_text,
    slot_text,
    status_line,
)
from runnerd_protocol.messages import SlotStatus, Status

HOSTILE = '[red]\x1b[2J\n"x'
WORKING = SlotStatus(1, "prompt", client_request_id=7, n_prompt=40, n_cached=8, n_evaluated=12)
BUSY = Status(
    1,
    "ready",
    n_slots=4,
    n_slots_free=3,
    n_cells=100,
    n_cells_used=10,
    n_waiting=2,
    oldest_wait_s=1.5,
    slots=[SlotStatus(0, "idle"), WORKING],
)


def test_only_slots_with_a_request_are_busy() -> None:
    assert busy_slots(BUSY) == [WORKING]


@pytest.mark.parametrize(
    ("n_prompt", "n_cached", "n_evaluated", "text"),
    [
        (40, 8, 12, "20/40 (8 cached)"),
        (40, 0, 12, "12/40"),
        (40, 8, 32, "40 (8 cached)"),
        (40, 0, 40, "40"),
        (0, 0, 0, "0"),
    ],
)
def test_a_prompt_says_how_far_it_is(
    n_prompt: int, n_cached: int, n_evaluated: int, text: str
) -> None:
    slot = SlotStatus(0, "prompt", 1, n_prompt, n_cached, n_evaluated)
    assert prompt_text(slot) == text


def test_a_slot_tells_whom_it_works_for() -> None:
    assert slot_text(WORKING).startswith("request 7 prompt, prompt 20/40 (8 cached), 0 gen")


def test_the_oldest_wait_is_told_where_somebody_waits() -> None:
    assert "the oldest for 1.5 s" in queue_text(BUSY)
    assert "oldest" not in queue_text(Status(1, "ready"))


def test_a_line_has_the_figures() -> None:
    line = status_line(BUSY)
    for fact in ("state=ready", "slots=1/4", "cells=10/100", "waiting=2", "oldest_wait_s=1.5"):
        assert fact in line.split()


def test_a_line_of_a_load_has_its_phase() -> None:
    line = status_line(Status(1, "loading", load_phase="weights", load_fraction=0.25))
    assert "phase=weights:25%" in line
    assert "cells" not in line


def test_a_line_steers_nothing_whatever_a_daemon_says() -> None:
    status = Status(
        1, "loading", load_phase=HOSTILE, stalled=HOSTILE, error=HOSTILE, error_code=HOSTILE
    )
    assert status_line(status).isprintable()
    assert error_text(status).isprintable()


def test_what_went_wrong_has_its_kind_before_it() -> None:
    assert error_text(Status(1, "failed", error="no room", error_code="oom")) == "oom: no room"
    assert error_text(Status(1, "ready")) == ""


def test_prometheus_counts_slots_by_what_they_do() -> None:
    lines = prometheus_text(BUSY).splitlines()
    assert 'runnerd_slots_by_state{state="prompt"} 1' in lines
    assert 'runnerd_slots_by_state{state="generating"} 0' in lines
    assert "runnerd_oldest_wait_seconds 1.5" in lines
    assert "runnerd_stalled 0" in lines


def test_prometheus_tells_of_a_stall() -> None:
    assert "runnerd_stalled 1" in prometheus_text(Status(1, "stalled", stalled="step"))
