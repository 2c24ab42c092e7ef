"""What is told of errors to those who watch a daemon: bounded, on one line, never a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.errors import (
    BadGrammar,
    Cancelled,
    EngineFailed,
    InvalidMedia,
    InvalidRequest,
    Overloaded,
    RequestError,
    ShuttingDown,
)
from runnerd.failure import Failure
from runnerd.trouble import MOST_CHARS, Trouble, Troubles, trouble_of

SECRET = "my secret"


def noted(*errors: RequestError) -> Trouble:
    troubles = Troubles(lambda: None)
    for err in errors:
        troubles.note(err)
    return troubles.last


def test_the_last_error_is_kept() -> None:
    assert noted() == Trouble("", "")
    assert noted(Overloaded("the queue is full"), EngineFailed("no\nroom")) == Trouble(
        "engine_failed", "no room"
    )


def test_what_somebody_wanted_is_no_error() -> None:
    errors = Overloaded("full"), Cancelled("the client"), ShuttingDown("the daemon")
    assert noted(*errors).code == "overloaded"


@pytest.mark.parametrize(
    "err",
    [
        InvalidRequest("stop[0]", SECRET, "less"),
        InvalidMedia(f"a file that begins with {SECRET}", "a PNG file"),
        BadGrammar(f"root ::= {SECRET}"),
    ],
)
def test_what_a_request_says_is_not_quoted(err: RequestError) -> None:
    trouble = noted(err)
    assert trouble.code == err.code
    assert trouble.text
    assert SECRET not in trouble.text


@given(st.text(max_size=3000))
def test_any_error_is_one_short_line_that_steers_no_terminal(text: str) -> None:
    for trouble in (noted(EngineFailed(text)), trouble_of(Failure("internal", text))):
        assert len(trouble.text) <= MOST_CHARS
        assert trouble.text.isprintable()


def test_many_errors_are_told_a_few_times_only() -> None:
    told: list[str] = []
    troubles = Troubles(lambda: told.append("news"))
    for _ in range(1000):
        troubles.note(Overloaded("full"))
    assert 1 <= len(told) < 100
