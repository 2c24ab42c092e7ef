import json

from hypothesis import given
from hypothesis import strategies as st

from runnerd.harmless import harmless, harmless_json, harmless_line


def test_text_keeps_its_lines_and_loses_its_control_characters() -> None:
    assert harmless("a\n\tb\x1b[2J\x07\u202e") == "a\n\tb\ufffd[2J\ufffd\ufffd"


@given(st.text(), st.integers(1, 300))
def test_a_line_is_one_line_of_bounded_length_that_steers_nothing(text: str, n: int) -> None:
    line = harmless_line(text, n)
    assert len(line) <= n
    assert line.isprintable()


def test_a_line_that_was_cut_says_so() -> None:
    assert harmless_line("a" * 300, 10) == "a" * 9 + "\u2026"


@given(st.recursive(st.text() | st.none(), st.lists))
def test_json_says_the_same_without_control_characters(value: object) -> None:
    text = harmless_json(json.dumps(value, ensure_ascii=False).encode())
    assert text.isprintable()
    assert json.loads(text) == value
