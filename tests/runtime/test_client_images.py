"""How a client sends images, to daemons that follow a script."""

import os
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from runnerd.client import CannotRead, CannotSend, PromptPart, connect
from runnerd.link import INLINE_BYTES
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Generate,
    GetStatus,
    Media,
    MediaPart,
    MediaWanted,
    Part,
    Status,
    TextPart,
    TokensPart,
    Welcome,
)
from tests.daemon import PATIENCE_S
from tests.scripted import Peer, scripted, talking

pytestmark = pytest.mark.anyio

MIB = 2**20
SMALL_FRAMES = Welcome(1, MIB)


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def by_hash(data: bytes) -> MediaPart:
    return MediaPart(sha256=digest(data))


# --- parts --------------------------------------------------------------------------------------


async def test_texts_images_and_files_become_parts_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "dog.png"
    path.write_bytes(b"a dog")
    heard: list[Part] = []

    async def talk(peer: Peer) -> None:
        heard.extend(await peer.expect_parts())

    parts: list[PromptPart] = ["x", b"a cat", path, TokensPart([5]), TextPart("<s>", special=True)]
    async with scripted(talking(talk)) as where, connect(where) as client:
        await client.complete(parts=parts)
    assert heard == [TextPart("x"), MediaPart(b"a cat"), MediaPart(b"a dog"), *parts[3:]]


async def test_a_prompt_may_hold_images_as_well_as_parts_may() -> None:
    heard: list[Part] = []

    async def talk(peer: Peer) -> None:
        heard.extend(await peer.expect_parts())

    async with scripted(talking(talk)) as path, connect(path) as client:
        await client.complete([TextPart("x"), MediaPart(b"a cat")])
    assert heard == [TextPart("x"), MediaPart(b"a cat")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either a prompt or parts"),
        ({"prompt": "x", "parts": ["x"]}, "either a prompt or parts"),
        ({"parts": "x"}, "parts are a list"),
        ({"parts": b"x"}, "parts are a list"),
        ({"parts": ["x", 7]}, r"parts\[1\] is a int"),
    ],
)
async def test_what_is_no_prompt_is_a_type_error(given: dict[str, object], words: str) -> None:
    async def talk(peer: Peer) -> None:
        asked = await peer.expect(GetStatus)
        await peer.say(Status(asked.request_id, "ready", last=True))

    async with scripted(talking(talk)) as path, connect(path) as client:
        with pytest.raises(TypeError, match=words):
            await client.complete(**given)  # type: ignore[arg-type]
        await client.status()


async def test_a_file_that_cannot_be_sent_is_named_before_anything_is(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(bytes(MIB))

    async def talk(peer: Peer) -> None:
        asked = await peer.expect(GetStatus)  # the first that it hears
        await peer.say(Status(asked.request_id, "ready", last=True))

    async with scripted(talking(talk, SMALL_FRAMES)) as path, connect(path) as client:
        for bad, words in (
            (tmp_path / "none.png", r"cannot read .*none\.png: No such file or directory"),
            (tmp_path, r"cannot read .*: Is a directory"),
            (Path("a\0b"), r"cannot read 'a\\x00b': .*null"),
        ):
            with pytest.raises(CannotRead, match=words):
                await client.complete(parts=["x", bad])
        limit = MIB - 64
        with pytest.raises(CannotSend, match=rf"large\.png has {MIB} bytes, a frame holds {limit}"):
            await client.complete(parts=[large])
        with pytest.raises(CannotSend, match=r"/dev/zero has more than \d+ bytes"):
            await client.complete(parts=[Path("/dev/zero")])
        with pytest.raises(CannotSend, match=rf"prompt\[1\] is a file of {MIB} bytes.* {limit}"):
            await client.complete(parts=["x", bytes(MIB)])
        with pytest.raises(CannotSend, match=r"prompt\[0\] is a file with another SHA-256"):
            await client.complete(parts=[MediaPart(b"a cat", digest(b"a dog"))])
        await client.status()


# --- what goes along ----------------------------------------------------------------------------


async def test_an_image_that_was_sent_goes_by_its_hash() -> None:
    heard: list[list[Part]] = []

    async def talk(peer: Peer) -> None:
        for _ in range(3):
            heard.append(await peer.expect_parts())

    async with scripted(talking(talk)) as path, connect(path) as client:
        await client.complete(parts=[b"a cat"])
        await client.complete(parts=[b"a cat", b"a dog"])
        await client.complete([MediaPart(b"a dog"), TextPart("?")])
    assert heard == [
        [MediaPart(b"a cat")],
        [by_hash(b"a cat"), MediaPart(b"a dog")],
        [by_hash(b"a dog"), TextPart("?")],
    ]


async def test_an_image_goes_along_once_in_a_request() -> None:
    heard: list[Part] = []

    async def talk(peer: Peer) -> None:
        heard.extend(await peer.expect_parts())

    async with scripted(talking(talk)) as path, connect(path) as client:
        await client.complete(parts=[b"a cat", "or", b"a cat"])
    assert heard == [MediaPart(b"a cat"), TextPart("or"), by_hash(b"a cat")]


async def test_every_connection_sends_for_itself() -> None:
    heard: list[list[Part]] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.expect_parts())

    async with scripted(talking(talk)) as path:
        for _ in range(2):
            async with connect(path) as client:
                await client.complete(parts=[b"a cat"])
    assert heard == [[MediaPart(b"a cat")]] * 2


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("", INLINE_BYTES + 1), ("", MIB // 2), ("x" * (MIB - 2000), 4000)]
)
async def test_large_files_follow_one_by_one(text: str, n_bytes: int) -> None:
    images = [bytes([n]) * n_bytes for n in range(3)]
    heard: dict[bytes, bytes] = {}

    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        assert asked.prompt == [TextPart(text), *map(by_hash, images)]
        wanted = MediaWanted(asked.request_id, [digest(image) for image in images])
        await peer.say(Accepted(asked.request_id), wanted)
        for _ in images:
            media = await peer.expect(Media)
            assert media.request_id == asked.request_id
            heard[digest(media.data)] = media.data
        await peer.end(asked.request_id)

    async with scripted(talking(talk, SMALL_FRAMES)) as path, connect(path) as client:
        done = await client.complete(parts=[text, *images])
    assert done.finished.reason == "length"
    assert sorted(heard.values()) == images


async def test_a_text_that_no_frame_holds_is_refused_with_images_too() -> None:
    async def talk(peer: Peer) -> None:
        asked = await peer.expect(GetStatus)
        await peer.say(Status(asked.request_id, "ready", last=True))

    async with scripted(talking(talk, SMALL_FRAMES)) as path, connect(path) as client:
        with pytest.raises(CannotSend, match=rf"Generate of \d+ bytes, a frame holds {MIB}"):
            await client.complete(parts=["x" * MIB, b"a cat"])
        await client.status()


# --- what the daemon wants --------------------------------------------------------------------


async def test_an_image_that_the_daemon_has_thrown_out_is_sent_again() -> None:
    async def talk(peer: Peer) -> None:
        await peer.expect_parts()
        asked = await peer.expect(Generate)
        assert asked.prompt == [by_hash(b"a cat")]
        wanted = MediaWanted(asked.request_id, [digest(b"a cat")])
        await peer.say(Accepted(asked.request_id), wanted)
        assert await peer.expect(Media) == Media(asked.request_id, b"a cat")
        await peer.end(asked.request_id)

    async with scripted(talking(talk)) as path, connect(path) as client:
        for _ in range(2):
            assert (await client.complete(parts=[b"a cat"])).finished.reason == "length"


async def test_files_are_sent_though_nobody_reads_the_stream() -> None:
    has_come = anyio.Event()

    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        wanted = MediaWanted(asked.request_id, [digest(b"a cat")])
        await peer.say(Accepted(asked.request_id), wanted)
        await peer.expect(Media)
        has_come.set()
        await peer.end(asked.request_id)

    async with scripted(talking(talk)) as path, connect(path) as client:
        async with client.generate(parts=[b"a cat"]) as stream:
            with anyio.fail_after(PATIENCE_S):
                await has_come.wait()
            assert (await stream.completion()).finished.reason == "length"


async def test_a_file_that_is_not_here_ends_the_request_and_says_so() -> None:
    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        wanted = MediaWanted(asked.request_id, [digest(b"a cat"), digest(b"a dog")])
        await peer.say(Accepted(asked.request_id), wanted)
        assert (await peer.expect(Cancel)).request_id == asked.request_id
        await peer.end(asked.request_id)
        await peer.expect_parts()

    async with scripted(talking(talk)) as path, connect(path) as client:
        with pytest.raises(CannotSend, match=f"nothing but its SHA-256 .*{digest(b'a dog').hex()}"):
            await client.complete(parts=[b"a cat", by_hash(b"a dog")])
        await client.complete(parts=[b"a cat"])


async def test_a_request_that_was_left_sends_no_more_files() -> None:
    images = [bytes([n]) * (MIB // 2) for n in range(3)]
    is_wanted, is_left = anyio.Event(), anyio.Event()

    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        wanted = MediaWanted(asked.request_id, [digest(image) for image in images])
        await peer.say(Accepted(asked.request_id), wanted)
        is_wanted.set()
        await is_left.wait()
        await peer.expect(Media)  # it was begun
        await peer.expect(Cancel)
        await peer.end(asked.request_id)
        await peer.expect_parts()

    async with scripted(talking(talk, SMALL_FRAMES)) as path, connect(path) as client:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client.generate(parts=images))
            await is_wanted.wait()
            await anyio.wait_all_tasks_blocked()  # amid the first file: the daemon does not read
            stack.callback(is_left.set)
        await client.complete(parts=["x"])


async def test_who_gives_up_while_a_file_is_sent_loses_nothing_else() -> None:
    is_wanted, is_given_up = anyio.Event(), anyio.Event()

    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        await peer.say(
            Accepted(asked.request_id), MediaWanted(asked.request_id, [digest(bytes(MIB // 2))])
        )
        is_wanted.set()
        await is_given_up.wait()
        await peer.expect(Media)  # whole
        await peer.expect(Cancel)
        await peer.end(asked.request_id)
        await peer.expect_parts()

    async with scripted(talking(talk, SMALL_FRAMES)) as path, connect(path) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.complete, parts=[bytes(MIB // 2)]))
            await is_wanted.wait()
            await anyio.wait_all_tasks_blocked()  # amid the file: the daemon does not read
            tasks.cancel_scope.cancel()
            is_given_up.set()
        await client.complete(parts=["x"])


async def test_files_of_several_requests_do_not_wait_for_their_ends() -> None:
    async def talk(peer: Peer) -> None:
        ids = [(await peer.expect(Generate)).request_id for _ in range(2)]
        for request_id, image in zip(ids, (b"a cat", b"a dog"), strict=True):
            wanted = MediaWanted(request_id, [digest(image)])
            await peer.say(Accepted(request_id), wanted)
        heard = [await peer.expect(Media) for _ in ids]
        assert [media.data for media in heard] == [b"a cat", b"a dog"]
        for request_id in ids:
            await peer.end(request_id)

    async with scripted(talking(talk)) as path, connect(path) as client:
        async with client.generate(parts=[b"a cat"]) as first:
            async with client.generate(parts=[b"a dog"]) as second:
                assert (await second.completion()).finished.reason == "length"
                assert (await first.completion()).finished.reason == "length"


async def test_a_wish_that_crosses_the_cancel_is_ignored() -> None:
    async def talk(peer: Peer) -> None:
        asked = await peer.expect(Generate)
        await peer.expect(Cancel)
        wanted = MediaWanted(asked.request_id, [digest(b"a cat")])
        await peer.end(asked.request_id, Accepted(asked.request_id), wanted)
        await peer.expect_parts()

    async with scripted(talking(talk)) as path, connect(path) as client:
        async with client.generate(parts=[b"a cat"]):
            pass
        await client.complete(parts=["x"])


async def test_the_path_of_a_pipe_can_be_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def talk(peer: Peer) -> None:
        await peer.expect_parts()

    async with scripted(talking(talk)) as path, connect(path) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.complete(parts=[pipe])
        assert scope.cancelled_caught
        with open(pipe, "wb"):  # lets go of the thread that waits for somebody to write
            pass
        await client.complete(parts=["x"])
