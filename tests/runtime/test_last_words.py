import json
from collections.abc import Sequence

import anyio
import pytest

from runnerd.last_words import KEPT_BYTES, LastWords

pytestmark = pytest.mark.anyio


async def heard(*pieces: bytes) -> LastWords:
    words = LastWords()
    send, receive = anyio.create_memory_object_stream[bytes](len(pieces))
    async with send, receive:
        for piece in pieces:
            await send.send(piece)
        await send.aclose()
        await words.read(_Bytes(receive))
    return words


class _Bytes(anyio.abc.ByteReceiveStream):
    def __init__(self, stream: anyio.abc.ObjectReceiveStream[bytes]) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()


def logged(level: str, event: str, **fields: str | Sequence[str]) -> bytes:
    return json.dumps({"level": level, "event": event, **fields}).encode() + b"\n"


async def test_lines_are_put_together_from_pieces() -> None:
    words = await heard(b"one\ntw", b"o\nthr", b"ee")
    assert words.lines == ["one", "two", "three"]


async def test_old_lines_are_forgotten() -> None:
    words = await heard(*(b"%d " % i + b"x" * 1000 + b"\n" for i in range(20)))
    assert words.lines[-1].startswith("19 ")
    assert sum(map(len, words.lines)) <= KEPT_BYTES


async def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    words = await heard(*(b"x" * 5000 for _ in range(100)))
    assert sum(map(len, words.lines)) < 3 * KEPT_BYTES


async def test_the_last_logged_error_is_the_cause() -> None:
    words = await heard(
        logged("error", "daemon.load_failed", error="no memory", native=["failed to fit"]),
        logged("info", "daemon.stopped"),
    )
    assert words.summary() == "no memory; failed to fit"


async def test_of_a_traceback_the_last_line_is_the_cause() -> None:
    words = await heard(
        logged("error", "daemon.crashed", exception="Traceback:\n  line\nValueError: bad"),
    )
    assert words.summary() == "ValueError: bad"


async def test_without_a_logged_error_the_last_line_is_the_cause() -> None:
    words = await heard(logged("info", "daemon.starting"), b"ImportError: no numpy\n", b"\n")
    assert words.summary() == "ImportError: no numpy"


async def test_nothing_heard_is_nothing_said() -> None:
    assert (await heard()).summary() == ""


async def test_that_the_log_was_cut_off_is_no_cause() -> None:
    line = json.dumps({"level": "error", "event": "native.cut_off"}).encode() + b"\n"
    assert (await heard(line)).summary() == ""
    assert (await heard(b"GGML_ASSERT(n > 0) failed\n", line)).summary() == (
        "GGML_ASSERT(n > 0) failed"
    )


async def test_the_check_that_has_failed_is_found_among_what_comes_after_it() -> None:
    native = logged("error", "native.line", text="/src/ggml.c:12: GGML_ASSERT(n > 0) failed")
    words = await heard(native, logged("error", "native.line", text="error: and more"))
    assert words.assertion() == "/src/ggml.c:12: GGML_ASSERT(n > 0) failed"
    assert (await heard(b"ggml-cpu.cpp:7: fatal error\n")).assertion() == (
        "ggml-cpu.cpp:7: fatal error"
    )
    assert (await heard(b"all is well\n")).assertion() == ""


async def test_a_failed_check_of_llama_cpp_is_told_with_its_file_and_line_alone() -> None:
    text = "/tmp/wheel-1/vendor/llama.cpp/ggml/src/ggml.c:12: GGML_ASSERT(n > 0) failed"
    words = await heard(f"{text}\n".encode())
    assert words.assertion() == "llama.cpp/ggml/src/ggml.c:12: GGML_ASSERT(n > 0) failed"
