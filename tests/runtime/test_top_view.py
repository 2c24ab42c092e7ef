from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from runnerd.commands.top_view import top_view
from runnerd.commands.watched import Watched
from runnerd_protocol.messages import DaemonState, SlotState, SlotStatus, Status

HOSTILE = "[bold]\x1b[2J\x07x"


def working(slot_id: int, state: SlotState = "generating") -> SlotStatus:
    return SlotStatus(slot_id, state, 70 + slot_id, n_prompt=40, n_evaluated=20, n_generated=3)


def some_status(*slots: SlotStatus, state: DaemonState = "ready") -> Status:
    return Status(
        1,
        state,
        model="tiny",
        n_slots=len(slots),
        n_cells=100,
        n_cells_used=50,
        n_waiting=2,
        oldest_wait_s=1.5,
        tokens_per_s=12.5,
        slots=list(slots),
    )


def watched(status: Status | None, note: str = "", name: str = "/run/a") -> Watched:
    daemon = Watched(Path(name), 1.0)
    daemon.status, daemon.note = status, note
    return daemon


def shown(*daemons: Watched, width: int = 100, height: int = 40) -> str:
    console = Console(width=width, height=height, file=StringIO())
    with console.capture() as written:
        console.print(top_view(daemons, console, "q ends"))
    return written.get()


def test_a_daemon_at_work_shows_its_slots_queue_cache_and_speed() -> None:
    text = shown(watched(some_status(working(0), SlotStatus(1, "idle"))))
    for words in ("/run/a", "ready", "tiny", "50 of 100 cells", "12.5 tokens/s", "generating"):
        assert words in text
    assert "2 requests, the oldest for 1.5 s" in text
    assert " 70 " in text


def test_a_load_shows_its_phase_and_how_far_it_is() -> None:
    text = shown(watched(Status(1, "loading", load_phase="weights", load_fraction=0.5)))
    assert "50% weights" in text
    assert "███████████████░░░" in text


def test_a_stall_is_shown_with_what_stalls() -> None:
    status = Status(1, "stalled", stalled="step", step_age_s=61.0)
    assert "step, for 61 s" in shown(watched(status))


def test_the_last_error_is_shown() -> None:
    assert "oom: no room" in shown(watched(Status(1, "failed", error="no room", error_code="oom")))


def test_a_daemon_that_was_never_there_says_so() -> None:
    assert "nobody listens there" in shown(watched(None, "nobody listens there"))


def test_of_a_daemon_that_has_gone_no_figure_is_taken_for_new() -> None:
    text = shown(watched(some_status(working(0)), "it has gone"))
    assert "it has gone" in text
    assert "trying again" in text
    assert "tokens/s" not in text
    assert "generating" not in text


def test_a_daemon_that_does_not_answer_is_told_from_one_that_is_well() -> None:
    silent = watched(some_status(working(0)))
    silent.heard_at -= 60.0
    assert "no answer for 60 s" in shown(silent)
    assert "no answer" not in shown(watched(some_status(working(0))))


def test_what_has_no_room_is_counted() -> None:
    text = shown(watched(some_status(*map(working, range(64)))), height=24)
    assert len(text.splitlines()) <= 24
    n_shown = text.count(" generating ")
    assert n_shown > 1
    assert f"and {64 - n_shown} more at work" in text


def test_several_daemons_are_all_there() -> None:
    daemons = [watched(some_status(working(0)), name=f"/run/{name}") for name in "abc"]
    text = shown(*daemons)
    assert all(f"/run/{name}" in text for name in "abc")


@pytest.mark.parametrize("state", get_args(DaemonState))
def test_no_state_or_slot_is_wider_than_the_terminal(state: DaemonState) -> None:
    slots = [working(number, each) for number, each in enumerate(get_args(SlotState))]
    for width in range(1, 130, 4):
        text = shown(watched(some_status(*slots, state=state)), width=width)
        assert all(len(line) <= width for line in text.splitlines())


def test_what_a_daemon_says_steers_no_terminal() -> None:
    status = Status(
        1,
        "loading",
        model=HOSTILE,
        load_phase=HOSTILE,
        stalled=HOSTILE,
        error=HOSTILE,
        error_code=HOSTILE,
    )
    text = shown(watched(status, name=HOSTILE), watched(None, HOSTILE))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.count("[bold]") == 7
