import anyio
import pytest

from runnerd.client import (
    CannotSend,
    Completion,
    ConnectionLost,
    GenerationStream,
    RequestFailed,
    StatusStream,
)
from runnerd.streams import Mailbox
from runnerd_protocol.messages import Accepted, DaemonMessage, Delta, Failed, Finished, Status
from tests.daemon import PATIENCE_S

pytestmark = pytest.mark.anyio


def mailbox_with(*messages: DaemonMessage) -> Mailbox:
    mailbox = Mailbox()
    for message in messages:
        mailbox.put(message)
    return mailbox


async def test_a_failure_is_raised_again_when_a_stream_is_read_again() -> None:
    failed = Failed(1, "overloaded", "the queue is full")
    stream = GenerationStream(1, mailbox_with(Accepted(1), Delta(1, "x"), failed))
    assert (await anext(stream)).text == "x"
    with anyio.fail_after(PATIENCE_S):
        for _ in range(3):
            with pytest.raises(RequestFailed, match="the queue is full"):
                await anext(stream)
        with pytest.raises(RequestFailed, match="the queue is full"):
            await stream.completion()


async def test_all_that_came_is_read_before_the_loss() -> None:
    mailbox = mailbox_with(Accepted(1), Delta(1, "x"))
    mailbox.lose("gone")
    stream = GenerationStream(1, mailbox)
    assert (await anext(stream)).text == "x"
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="gone"):
            await anext(stream)


async def test_a_loss_that_is_our_own_fault_is_no_lost_connection() -> None:
    mailbox = mailbox_with(Accepted(1))
    mailbox.lose("there is no such image", CannotSend)
    with pytest.raises(CannotSend, match="no such image"):
        await anext(GenerationStream(1, mailbox))


async def test_statuses_end_after_the_last() -> None:
    mailbox = mailbox_with(Status(1, "ready"), Status(1, "stopped", last=True))
    statuses = StatusStream(1, mailbox)
    with anyio.fail_after(PATIENCE_S):
        assert [status.state async for status in statuses] == ["ready", "stopped"]
        assert [status async for status in statuses] == []


async def test_all_tasks_that_read_one_stream_learn_of_its_end() -> None:
    mailbox = Mailbox()
    stream = GenerationStream(1, mailbox)
    texts: list[str] = []

    async def read() -> None:
        done: Completion = await stream.completion()
        texts.append(done.text)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            for message in (Accepted(1), Delta(1, "once"), Finished(1, "stop", n_text_bytes=4)):
                mailbox.put(message)
    assert sorted(texts) == ["", "", "once"]


async def test_who_reads_statuses_slowly_gets_the_newest() -> None:
    mailbox = Mailbox(only_newest=True)
    statuses = StatusStream(1, mailbox)
    for n_steps in range(3):
        mailbox.put(Status(1, "ready", n_steps=n_steps))
    assert (await anext(statuses)).n_steps == 2
    mailbox.put(Status(1, "ready"))
    mailbox.put(Status(1, "stopped", last=True))
    assert [status.state async for status in statuses] == ["stopped"]


async def test_a_refusal_does_not_take_the_place_of_a_status() -> None:
    mailbox = Mailbox(only_newest=True)
    mailbox.put(Status(1, "ready"))
    mailbox.put(Failed(1, "shutting_down", "no"))
    statuses = StatusStream(1, mailbox)
    assert (await anext(statuses)).state == "ready"
    with pytest.raises(RequestFailed, match="shutting_down"):
        await anext(statuses)
