"""Images from the client to the reference engine, over a real socket."""

import base64
import os
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from runnerd.client import CannotSend, ChatError, Client, PromptPart, RequestFailed, connect
from runnerd.config import ImageLimits, SessionLimits
from runnerd_protocol.messages import MediaPart, TextPart
from tests.daemon import PATIENCE_S, running_daemon
from tests.media.drawn import drawn

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2"


async def said(client: Client, *parts: PromptPart, scope: str = "") -> str:
    """Return what the model says to parts."""
    with anyio.fail_after(PATIENCE_S):
        done = await client.complete(
            parts=parts, max_tokens=12, temperature=0.0, cache_scope=scope, ignore_end=True
        )
    assert done.finished.reason == "length"
    return done.text


async def test_bytes_a_path_and_a_part_are_the_same_image(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(drawn(1))
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        texts = [await said(client, "x", image) for image in (drawn(1), path, MediaPart(drawn(1)))]
        assert len(set(texts)) == 1
        assert await said(client, "x", drawn(2)) != texts[0]
        status = await client.status()
        assert status.n_images_encoded == 2


async def test_an_image_that_the_daemon_has_thrown_out_is_no_matter_to_the_user() -> None:
    limits = ImageLimits(store_bytes=2048)
    async with running_daemon(MODEL, images=limits) as daemon, connect(daemon.path) as client:
        texts = [await said(client, "x", drawn(number)) for number in range(4)]
        assert sha256(drawn(0)).digest() not in daemon.runner.pictures.files
        again = [await said(client, "x", drawn(number), scope="new") for number in range(4)]
    assert again == texts


async def test_images_that_no_frame_holds_together_arrive() -> None:
    limits = SessionLimits(max_frame_bytes=2**17)
    images = [drawn(number) + os.urandom(2**16) for number in range(3)]  # what follows is ignored
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        wanted = await said(client, *images)
    async with running_daemon(MODEL, limits=limits) as daemon, connect(daemon.path) as client:
        assert await said(client, *images) == wanted
        with pytest.raises(CannotSend, match=r"prompt\[0\] is a file of \d+ bytes, a frame holds"):
            await client.complete(parts=[bytes(2**17)])


async def test_what_is_no_image_is_refused_by_its_number() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        for _ in range(2):  # the second time it goes by its hash
            with pytest.raises(RequestFailed, match=r"invalid_media: image 1:") as caught:
                await client.complete(parts=[drawn(1), "x", b"no image"])
            assert caught.value.failed.details["field"] == "prompt[2]"
        await daemon.has_all_slots()


async def test_a_hash_stands_for_what_this_connection_has_sent() -> None:
    cat = MediaPart(sha256=sha256(drawn(1)).digest())
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        text = await said(client, "x", drawn(1))
        assert await said(client, "x", cat) == text
        async with connect(daemon.path) as stranger:
            with pytest.raises(CannotSend, match="nothing but its SHA-256 was given"):
                await said(stranger, "x", cat)
            assert await said(stranger, "x", drawn(1)) == text
        await daemon.has_all_slots()


async def test_many_requests_with_images_of_their_own_are_not_mixed_up() -> None:
    async with running_daemon(MODEL, n_slots=8) as daemon, connect(daemon.path) as client:
        alone = [await said(client, "x", drawn(n), drawn(n + 1), scope="alone") for n in range(12)]
        together = [""] * len(alone)

        async def ask(number: int) -> None:
            parts = ("x", drawn(number), drawn(number + 1))
            together[number] = await said(client, *parts, scope="together")

        async with anyio.create_task_group() as tasks:
            for number in range(len(alone)):
                tasks.start_soon(ask, number)
        assert together == alone


async def test_a_chat_about_an_image_goes_on_from_what_is_cached(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(drawn(1))
    url = "data:image/png;base64," + base64.b64encode(drawn(1)).decode()
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        turns: list[dict[str, object]] = [{"role": "user", "content": ["What is this?", path]}]
        first = await client.complete_chat(turns, max_tokens=8, temperature=0.0)
        turns[0]["content"] = [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        turns.append({"role": "assistant", "content": first.text})
        turns.append({"role": "user", "content": "Sure?"})
        second = await client.complete_chat(turns, max_tokens=8)
        assert second.finished.n_cached >= first.finished.n_prompt - 1
        assert (await client.status()).n_images_encoded == 1
        with pytest.raises(ChatError, match="nothing is fetched"):
            item = {"type": "image_url", "image_url": {"url": "http://localhost/"}}
            await client.complete_chat([{"role": "user", "content": [item]}])


async def test_an_image_is_two_marks_and_its_rows_and_no_more_in_a_chat() -> None:
    async with running_daemon(MODEL) as daemon, connect(daemon.path) as client:
        plain = await client.complete([MediaPart(drawn(1))], max_tokens=0)
        bare = await client.complete([TextPart("")], max_tokens=0)
        n_rows = plain.finished.n_prompt - bare.finished.n_prompt
        with_image = await client.complete_chat(
            [{"role": "user", "content": ["What is this?", drawn(1)]}], max_tokens=0
        )
        without = await client.complete_chat(
            [{"role": "user", "content": "What is this?"}], max_tokens=0
        )
        assert with_image.finished.n_prompt - without.finished.n_prompt == n_rows


async def test_a_model_without_images_says_so() -> None:
    async with running_daemon(f"{MODEL},images=0") as daemon, connect(daemon.path) as client:
        with pytest.raises(RequestFailed, match="unsupported"):
            await client.complete(parts=["x", drawn(1)])
        assert await said(client, "x")
