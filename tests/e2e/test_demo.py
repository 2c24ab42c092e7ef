import pytest

from tests.processes import Family, needs_model, run, running

REFERENCE = ("--engine=reference", "--model=layers=0,step_ms=5")


def test_without_a_terminal_the_answers_are_lines_with_a_number() -> None:
    ended = run("demo", *REFERENCE, "--max-tokens=80")
    assert (ended.code, ended.err) == (0, "")
    for number in "1234":
        assert f"\n{number}? " in ended.out
        assert f"\n{number}: " in ended.out
    assert "\x1b" not in ended.out


def test_the_figures_are_those_of_all_four() -> None:
    lines = run("demo", *REFERENCE, "--max-tokens=10").out.splitlines()
    heading = next(i for i, line in enumerate(lines) if "TTFT" in line)
    rows = [line.split() for line in lines[heading + 1 :] if line.strip()]
    assert [row[:2] for row in rows] == [
        ["1", "10"],
        ["2", "10"],
        ["3", "10"],
        ["4", "10"],
        ["all", "40"],
    ]


def test_on_a_terminal_the_answers_grow_side_by_side() -> None:
    with running("demo", *REFERENCE, "--max-tokens=60", on_terminal=True) as command:
        command.wait_for("waiting")  # a panel before its first token
        command.wait_for("60 tokens")
        text = command.rest()
        assert command.wait() == 0
    assert any("─ 1 ─" in line and "─ 2 ─" in line for line in text.splitlines())
    assert all(len(line) <= 80 for line in text.splitlines() if "\x1b" not in line)


@pytest.mark.parametrize("text", ["loading", "─ 1 ─"])
def test_ctrl_c_at_any_time_leaves_no_process(text: str) -> None:
    options = ("--engine=reference", "--model=layers=0,step_ms=20,load_ms=500")
    with running("demo", *options, "--max-tokens=400", on_terminal=True) as command:
        command.wait_for(text)
        family = Family(command.process.pid)
        command.interrupt()
        assert command.wait() == 130
        assert "Traceback" not in command.rest()
    assert len(family.pids) == 3  # the command, its daemon, and the daemon's log relay
    assert family.has_ended()


def test_a_demo_that_cannot_load_says_why() -> None:
    ended = run("demo", "--engine=reference", "--model=fail_load=1")
    assert ended.code == 65
    assert "fail_load=1" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.llama
@needs_model
def test_the_real_model_answers_four_questions() -> None:
    ended = run("demo", "--max-tokens=12", timeout=300)
    assert ended.code == 0, ended
    assert "SmolLM2" in ended.out
    assert all(f"\n{number}: " in ended.out for number in "1234")
