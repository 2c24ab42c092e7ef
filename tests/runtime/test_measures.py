import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.commands.measures import bar, clock, size


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**20 + 2**19, "3.5 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (-(2**31), "-2.0 GiB"),
    ],
)
def test_a_size_is_in_the_largest_unit_of_which_there_is_one(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


def test_a_time_is_hours_minutes_and_seconds() -> None:
    assert clock(3 * 3600 + 7 * 60 + 9.9) == "3:07:09"


numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18)


@given(numbers, numbers, st.integers(0, 200))
def test_a_bar_is_never_wider_than_its_columns(part: float, whole: float, n_columns: int) -> None:
    assert len(bar(part, whole, n_columns)) <= n_columns


def test_a_bar_is_as_long_as_the_part() -> None:
    assert bar(1, 2, 10) == "█████"
    assert bar(1, 16, 2) == "▏"
    assert bar(0, 2, 10) == ""


def test_what_is_there_at_all_shows() -> None:
    assert bar(1, 10**9, 10) == "▏"


def test_more_than_the_whole_is_a_full_bar() -> None:
    assert bar(30, 10, 4) == "████"
