"""Mailboxes: order, coalescing, and who is told when there is too much."""

import anyio
import pytest
from msgspec.structs import replace

from runnerd.outbox import (
    CROWDED_BYTES,
    LINE_BYTES,
    LOGPROB_BYTES,
    MESSAGE_BYTES,
    TOKEN_BYTES,
    Outbox,
)
from runnerd_protocol.messages import (
    Accepted,
    Delta,
    Embeddings,
    Failed,
    Finished,
    LayerMemory,
    MemoryReport,
    Model,
    PromptProgress,
    SlotStatus,
    Status,
    Text,
    TokenLogprobs,
    Tokens,
    TopLogprob,
    Welcome,
)
from tests.protocol.builders import SMALL_MEMORY

pytestmark = pytest.mark.anyio


class Watcher:
    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def __call__(self, request_id: int, is_full: bool) -> None:
        self.calls.append((request_id, is_full))


async def test_deltas_that_wait_together_become_one() -> None:
    outbox = Outbox(100, Watcher())
    outbox.put(Accepted(1))
    outbox.put(Delta(1, "a", 1, [7]))
    outbox.put(Delta(2, "x"))
    outbox.put(Delta(1, "b", 2, [8, 9]))
    outbox.put(Finished(1, "length"))
    assert await outbox.take() == [
        Accepted(1),
        Delta(1, "ab", 3, [7, 8, 9]),
        Finished(1, "length"),
        Delta(2, "x"),
    ]
    assert outbox.is_empty


def picked(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, b"x", [TopLogprob(7, -0.25, b"y")])


async def test_deltas_of_several_completions_are_merged_each_with_its_own() -> None:
    outbox = Outbox(10_000, Watcher())
    for text in "ab":
        for index in (0, 1):
            outbox.put(Delta(1, f"{text}{index}", 1, [index], index, [picked(index)]))
    outbox.put(Finished(1, "length"))
    assert await outbox.take() == [
        Delta(1, "a0b0", 2, [0, 0], 0, [picked(0)] * 2),
        Delta(1, "a1b1", 2, [1, 1], 1, [picked(1)] * 2),
        Finished(1, "length"),
    ]


async def test_what_a_full_request_still_says_goes_out_in_frames_of_its_own() -> None:
    outbox = Outbox(4, Watcher())
    for text in ("abc", "de", "f", "g"):
        outbox.put(Delta(1, text))
    assert await outbox.take() == [Delta(1, "abcde", 2), Delta(1, "f"), Delta(1, "g")]


async def test_of_a_completions_progress_only_the_newest_waits() -> None:
    outbox = Outbox(100, Watcher())
    for n_processed in range(3 * CROWDED_BYTES // MESSAGE_BYTES):
        for index in (0, 1):
            outbox.put(PromptProgress(1, 9999, n_processed=n_processed, index=index))
    outbox.put(Delta(1, "a"))
    outbox.put(PromptProgress(1, 9999, n_processed=9999, index=1))
    outbox.put(Delta(1, "b"))
    with anyio.fail_after(1):
        await outbox.wait_for_room()
    assert await outbox.take() == [
        PromptProgress(1, 9999, n_processed=n_processed),
        PromptProgress(1, 9999, n_processed=9999, index=1),
        Delta(1, "ab", 2),
    ]


async def test_progress_of_a_reused_id_does_not_replace_what_was_before_its_end() -> None:
    outbox = Outbox(100, Watcher())
    outbox.put(PromptProgress(1, n_ahead=1))
    outbox.put(Finished(1, "cancelled"))
    outbox.put(PromptProgress(1, n_ahead=2))
    assert len(await outbox.take()) == 3


async def test_log_probabilities_fill_a_mailbox_too() -> None:
    watcher = Watcher()
    outbox = Outbox(4 * LOGPROB_BYTES, watcher)
    outbox.put(Delta(1, "", 2, logprobs=[picked(1), picked(2)]))
    assert watcher.calls == []
    outbox.put(Delta(1, "", 1, logprobs=[picked(3)]))
    assert watcher.calls == [(1, True)]


async def test_of_a_subscription_only_the_newest_status_waits() -> None:
    outbox = Outbox(100, Watcher())
    for n_steps in range(3 * CROWDED_BYTES // MESSAGE_BYTES):
        outbox.put(Status(1, "ready", n_steps=n_steps))
    outbox.put(Status(2, "ready"))
    outbox.put(Status(1, "ready", last=True))
    outbox.put(Status(1, "draining"))
    with anyio.fail_after(1):
        await outbox.wait_for_room()
    assert await outbox.take() == [
        Status(1, "ready", n_steps=n_steps),
        Status(1, "ready", last=True),
        Status(1, "draining"),
        Status(2, "ready"),
    ]


async def test_deltas_of_a_reused_id_are_not_mixed_with_those_before_its_end() -> None:
    outbox = Outbox(100, Watcher())
    outbox.put(Delta(1, "a"))
    outbox.put(Failed(1, "code", "text"))
    outbox.put(Delta(1, "b"))
    assert [type(message) for message in await outbox.take()] == [Delta, Failed, Delta]


async def test_a_request_is_full_once_and_no_more_after_the_writer_came() -> None:
    watcher = Watcher()
    outbox = Outbox(4, watcher)
    outbox.put(Delta(1, "abcd"))
    assert watcher.calls == []
    outbox.put(Delta(1, "e"))
    outbox.put(Delta(1, "f"))
    assert watcher.calls == [(1, True)]
    await outbox.take()
    assert watcher.calls == [(1, True), (1, False)]
    outbox.put(Delta(1, "abcd"))
    assert len(watcher.calls) == 2


async def test_bytes_are_counted_rather_than_characters() -> None:
    watcher = Watcher()
    Outbox(4, watcher).put(Delta(1, "日本"))
    assert watcher.calls == [(1, True)]


async def test_tokens_without_text_fill_a_mailbox_too() -> None:
    watcher = Watcher()
    outbox = Outbox(10 * TOKEN_BYTES, watcher)
    for _ in range(11):
        outbox.put(Delta(1, "", 1, [300]))
    assert watcher.calls == [(1, True)]


async def test_one_full_request_says_nothing_of_another() -> None:
    watcher = Watcher()
    outbox = Outbox(4, watcher)
    outbox.put(Delta(1, "abcde"))
    outbox.put(Delta(2, "abc"))
    assert watcher.calls == [(1, True)]


async def test_the_writer_waits_for_mail_and_for_the_bell() -> None:
    outbox = Outbox(4, Watcher())
    taken: list[object] = []

    async def take_twice() -> None:
        taken.append(await outbox.take())
        taken.append(await outbox.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_twice)
        await anyio.wait_all_tasks_blocked()
        assert taken == []
        outbox.put(Welcome(1, 2))
        await anyio.wait_all_tasks_blocked()
        assert taken == [[Welcome(1, 2)]]
        outbox.ring()
    assert taken == [[Welcome(1, 2)], []]


async def test_a_bell_that_rang_before_the_writer_came_is_heard_once() -> None:
    outbox = Outbox(4, Watcher())
    outbox.ring()
    with anyio.fail_after(1):
        assert await outbox.take() == []
    with anyio.move_on_after(0) as scope:
        await outbox.take()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("message", "n_most"),
    [
        (Failed(1, "bad_message", "x"), CROWDED_BYTES // MESSAGE_BYTES),
        (Tokens(1, [0] * 2**16), 1 + CROWDED_BYTES // (MESSAGE_BYTES + TOKEN_BYTES * 2**16)),
        (
            Embeddings(1, [bytes(2**16)] * 4, 2**14, [1] * 4),
            1 + CROWDED_BYTES // (MESSAGE_BYTES + 2**18 + 4 * TOKEN_BYTES),
        ),
        (
            Embeddings(1, [b""], 1, [1] * 2**12),
            1 + CROWDED_BYTES // (MESSAGE_BYTES + TOKEN_BYTES * 2**12),
        ),
        (Text(1, "é" * 2**17), 1 + CROWDED_BYTES // (MESSAGE_BYTES + 2**18)),
        (
            Model(1, "m", 1, 1, 1, chat_template="x" * 2**18),
            1 + CROWDED_BYTES // (MESSAGE_BYTES + 2**18),
        ),
        (Text(1, "x" * 2**18), 1 + CROWDED_BYTES // (MESSAGE_BYTES + 2**18)),
        (
            Status(1, "ready", last=True, slots=[SlotStatus(0, "idle")] * 256),
            1 + CROWDED_BYTES // (MESSAGE_BYTES + 256 * LINE_BYTES),
        ),
        (
            MemoryReport(1, replace(SMALL_MEMORY, layers=[LayerMemory("cpu", 1, 1)] * 255)),
            1 + CROWDED_BYTES // (MESSAGE_BYTES + 256 * LINE_BYTES),
        ),
    ],
)
async def test_a_crowd_of_answers_makes_the_reader_wait(
    message: Failed | Tokens | Text | Embeddings | Model | Status | MemoryReport, n_most: int
) -> None:
    outbox = Outbox(4, Watcher())
    n_read = 0

    async def read() -> None:
        nonlocal n_read
        while True:
            outbox.put(message)
            n_read += 1
            await outbox.wait_for_room()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert n_most <= n_read <= n_most + 1
            assert len(await outbox.take()) == n_read
            n_before = n_read
            await anyio.wait_all_tasks_blocked()
            assert n_read == 2 * n_before
            tasks.cancel_scope.cancel()
