import json
import os
from collections.abc import Callable

import pytest

from runnerd.errors import BadGrammar, EngineBroken
from runnerd.tracebacks import MOST_EXCEPTIONS, traceback_of

SECRET = "Xanthippe"


def raised(fail: Callable[[], object]) -> BaseException:
    try:
        fail()
    except Exception as err:
        return err
    raise AssertionError


def chained(cause: BaseException) -> BaseException:
    def fail() -> None:
        try:
            raise cause
        except Exception as err:
            raise TypeError("outer") from err

    return raised(fail)


def in_context(first: BaseException) -> BaseException:
    def fail() -> None:
        try:
            raise first
        finally:
            raise TypeError("outer")

    return raised(fail)


def in_a_group(inner: BaseException) -> BaseException:
    assert isinstance(inner, Exception)
    return ExceptionGroup(SECRET, [TypeError("outer"), ExceptionGroup("", [inner])])


@pytest.mark.parametrize("within", [lambda err: err, chained, in_context, in_a_group])
@pytest.mark.parametrize(
    "fail",
    [
        lambda: int(SECRET),
        lambda: dict[str, int]()[SECRET],
        lambda: SECRET.encode().decode("utf-16"),
        lambda: json.loads(f"[{SECRET}"),
        lambda: (_ for _ in ()).throw(BadGrammar(SECRET)),
        lambda: (_ for _ in ()).throw(RuntimeError(SECRET)),
    ],
)
def test_a_message_that_could_quote_a_request_is_left_out(
    within: Callable[[BaseException], BaseException], fail: Callable[[], object]
) -> None:
    inner = raised(fail)
    shown = traceback_of(within(inner))
    assert SECRET not in shown
    assert type(inner).__name__ in shown
    assert "in raised" in shown


def test_a_message_about_code_or_files_or_the_engine_is_shown() -> None:
    assert traceback_of(raised(lambda: os.stat("/nowhere"))).endswith("directory: '/nowhere'")
    assert traceback_of(raised([].pop)).endswith("IndexError: pop from empty list")
    assert traceback_of(EngineBroken("gave -3")).endswith("runnerd.errors.EngineBroken: gave -3")


def test_causes_come_before_what_they_caused() -> None:
    shown = traceback_of(chained(OSError("inner")))
    assert shown.index("OSError: inner") < shown.index("direct cause") < shown.index("outer")


def test_exceptions_in_a_circle_or_a_crowd_come_to_an_end() -> None:
    first, second = TypeError("first"), TypeError("second")
    first.__cause__, second.__cause__ = second, first
    assert traceback_of(first).count("TypeError: first") == 1
    crowd = ExceptionGroup("", [TypeError(str(i)) for i in range(1000)])
    assert traceback_of(crowd).count("Traceback") == MOST_EXCEPTIONS


def test_an_exception_that_cannot_say_what_it_is_is_shown_by_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert traceback_of(Mute()).endswith("Mute")
