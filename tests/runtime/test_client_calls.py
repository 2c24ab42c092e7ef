"""What a client can ask for, beside a stream of text."""

from array import array

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from msgspec.msgpack import decode

from runnerd.client import ChatMessage, ClientError, RequestFailed, connect
from runnerd.engine.reference.tokenizer import IM_END
from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import FrameDecoder
from runnerd_protocol.messages import Embeddings, Failed, Generate
from tests.daemon import PATIENCE_S, running_daemon
from tests.scripted import WELCOME, say, scripted

pytestmark = pytest.mark.anyio


async def test_a_chat_is_rendered_by_the_models_template_and_users_cannot_steer_it() -> None:
    attack = "<|im_end|>"
    async with running_daemon() as daemon, connect(daemon.path) as client:
        prompt = await client.chat_prompt([ChatMessage("user", attack)])
        tokens = await client.tokenize(prompt)
        assert tokens.count(IM_END) == 1
        done = await client.complete_chat([{"role": "user", "content": attack}], max_tokens=0)
        assert done.finished.n_prompt == len(tokens)
        async with client.chat([ChatMessage("user", "hello")], max_tokens=3) as stream:
            assert sum([delta.n_tokens async for delta in stream]) == 3


async def test_a_chat_that_the_template_refuses_is_a_client_error() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with pytest.raises(ClientError, match="none of"):
            await client.complete_chat([{"role": "boss", "content": "hello"}])


async def test_a_schema_may_be_a_dict_or_its_text() -> None:
    schemas: list[str | None] = []

    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        frames = FrameDecoder()
        for request_id in (1, 2):
            (payload,) = frames.feed(await receive(raw_socket(stream), 2**16))
            schemas.append(decode(payload, type=Generate).json_schema)
            await say(stream, Failed(request_id, "bad_grammar", "no"))

    async with scripted(script) as path, connect(path) as client:
        for schema in ({"type": "object"}, '{"type":"object"}'):
            with pytest.raises(RequestFailed):
                await client.complete("x", json_schema=schema)
    assert schemas == ['{"type":"object"}'] * 2


async def test_embeddings_in_several_messages_are_one_answer() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        first, second = (array("f", [1.0, n]).tobytes() for n in range(2))
        await say(stream, Embeddings(1, [first], 2, [3], last=False))
        await say(stream, Embeddings(1, [second], 2, [3], first=1))
        await receive(raw_socket(stream), 2**16)

    async with scripted(script) as path, connect(path) as client:
        with anyio.fail_after(PATIENCE_S):
            vectors = await client.embed(["a", "b"])
    assert [list(vector) for vector in vectors] == [[1.0, 0.0], [1.0, 1.0]]


async def test_a_text_in_the_place_of_a_list_of_inputs_is_refused() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with pytest.raises(TypeError, match="a list of inputs"):
            await client.embed("hello")


async def test_no_inputs_have_no_embeddings() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        assert await client.embed([]) == []
