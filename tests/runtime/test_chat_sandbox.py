"""Templates within bounds, and what they may use besides plain Jinja."""

import threading
from collections.abc import ItemsView

import anyio
import pytest
from anyio import to_thread

from runnerd.chat import ChatError, ChatMessage, render_chat
from runnerd.client import connect
from runnerd_protocol.messages import TextPart
from tests.daemon import PATIENCE_S, running_daemon

HELLO = [ChatMessage("user", "hello")]
LOOP = "{{% for i in range(99) %}}{}{{% endfor %}}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'x' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** 10000 }}",
        "{% set n = namespace(x='x') %}" + LOOP.format("{% set n.x = n.x + n.x %}"),
        "{% set n = namespace(x=9) %}" + LOOP.format("{% set n.x = n.x * n.x %}"),
        "{{ range(10 ** 9) | list }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_goes_too_far_is_stopped(template: str) -> None:
    with pytest.raises(ChatError, match="the chat template failed"):
        render_chat(template, HELLO)


def test_small_sums_and_repetitions_are_computed() -> None:
    template = (
        "{{ 2 * 3 + 2 ** 4 }}{{ '-' * 3 }}{{ [1] + [2] }}{{ 1.5 * 2 }}{{ messages[0].content }}"
    )
    assert render_chat(template, HELLO) == [
        TextPart("22---[1, 2]3.0", special=True),
        TextPart("hello"),
    ]


def test_what_the_assistant_generates_may_be_marked_in_a_template() -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}"
    )
    assert render_chat(template, HELLO) == [TextPart("hello"), TextPart("!", special=True)]


class SlowMessage(dict[str, object]):
    """A message that is read when it is let."""

    def __init__(self) -> None:
        super().__init__(role="user", content="hello")
        self.is_read = threading.Event()
        self.may_be_read = threading.Event()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self.is_read.set()
        assert self.may_be_read.wait(PATIENCE_S)
        return ItemsView(self)


@pytest.mark.anyio
async def test_while_a_template_is_rendered_the_loop_goes_on() -> None:
    slow = SlowMessage()
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.chat_prompt, [slow])
                assert await to_thread.run_sync(slow.is_read.wait, PATIENCE_S)
                assert (await client.status()).state == "ready"
                slow.may_be_read.set()


@pytest.mark.anyio
async def test_who_gives_up_does_not_wait_for_the_template() -> None:
    slow = SlowMessage()
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with anyio.fail_after(PATIENCE_S), anyio.move_on_after(0.1) as scope:
            await client.complete_chat([slow])
        assert scope.cancelled_caught
        slow.may_be_read.set()
