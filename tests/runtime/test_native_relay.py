"""Lines out of bytes, and how grave each sounds."""

import pytest

from runnerd.native_relay import MAX_LINE_BYTES, LevelGuess, LineSplitter


def test_a_line_is_found_however_its_bytes_arrive() -> None:
    splitter = LineSplitter()
    pieces = [splitter.feed(bytes([byte])) for byte in b"ab\n\ncd\n"]
    assert [line for lines in pieces for line in lines] == [b"ab", b"cd"]


def test_a_line_without_an_end_comes_in_pieces() -> None:
    splitter = LineSplitter()
    n_bytes = 3 * MAX_LINE_BYTES + 5
    pieces = splitter.feed(b"x" * n_bytes) + splitter.feed(b"\n")
    assert max(map(len, pieces)) == MAX_LINE_BYTES
    assert sum(map(len, pieces)) == n_bytes


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("llama_model_load: error loading model: missing tensor", "error"),
        ("failed to allocate buffer", "error"),
        ("ggml_abort: Fatal", "error"),
        ("/src/ggml.c:10: GGML_ASSERT(a == b)", "error"),
        ("CUDA: out of memory", "error"),
        ("load: warning: no pre-tokenizer", "warning"),
        ("unable to lock memory", "warning"),
        ("llama_context: n_ctx = 4096", "debug"),
        ("- kv 24: tokenizer.chat_template = {{ raise_exception('x') }}", "debug"),
    ],
)
def test_a_level_is_guessed_from_words(text: str, level: str) -> None:
    assert LevelGuess().of(text) == level


def test_after_a_traceback_lines_are_guessed_again() -> None:
    guess = LevelGuess()
    traceback = ["Traceback (most recent call last):", "  File x", "    y", "KeyError: 1"]
    assert [guess.of(text) for text in [*traceback, "llama: fine"]] == ["error"] * 4 + ["debug"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("graph_compute: ggml_backend_sched_graph_compute_async failed with error 1", "debug"),
        ("graph_compute: ggml_backend_sched_graph_compute_async failed with error -1", "error"),
        ("process_ubatch: failed to compute graph, compute status: 1", "debug"),
        ("process_ubatch: failed to compute graph, compute status: -2", "error"),
        ("llama_decode: failed to decode, ret = 2", "debug"),
        ("llama_encode: failed to encode, ret = 2", "debug"),
        ("llama_decode: failed to decode, ret = -3", "error"),
        ("llama_decode: failed to decode, ret = 21", "error"),
    ],
)
def test_a_pass_that_was_stopped_is_no_error(text: str, level: str) -> None:
    assert LevelGuess().of(text) == level
