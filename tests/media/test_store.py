"""The store of image files: each is read once, kept while it is needed, and bounded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import anyio
import pytest

from runnerd.config import ImageLimits
from runnerd.errors import InvalidMedia, Overloaded
from runnerd.media.files import ENTRY_BYTES, Holder, Picture
from runnerd.media.store import Lease, PictureStore
from runnerd.sizes import HASHED_AT_ONCE
from tests.daemon import PATIENCE_S
from tests.media.drawn import add, drawn

FILE_BYTES = ENTRY_BYTES + len(drawn(0))
BROKEN = drawn(0)[:-20]


def make_store(
    *, n_files: float = 100, n_pixels: int = 2**20, pixel_bytes: int = 2**20
) -> PictureStore:
    store_bytes = int(n_files * FILE_BYTES)
    return PictureStore(
        ImageLimits(n_pixels=n_pixels, store_bytes=store_bytes, pixel_bytes=pixel_bytes)
    )


def hash_of(data: bytes) -> bytes:
    return sha256(data).digest()


@asynccontextmanager
async def no_decode(store: PictureStore) -> AsyncIterator[None]:
    """Let no decode begin within the block."""
    async with store._decoders:
        yield


async def until_reading(store: PictureStore, n_files: int) -> None:
    """Wait until so many files have passed the look at their headers, and wait for more."""
    with anyio.fail_after(PATIENCE_S):
        while store._decoders.statistics().tasks_waiting < n_files:
            await anyio.sleep(0.001)  # threads set no event of ours


async def until_turn(holder: Holder, n_waiting: int) -> None:
    """Wait until one of a holder's files has the turn, and so many wait for it."""
    with anyio.fail_after(PATIENCE_S):
        while holder.turn.statistics().tasks_waiting < n_waiting:
            await anyio.sleep(0.001)  # threads set no event of ours


async def add_alone(store: PictureStore, data: bytes) -> Picture:
    """Add a file for a request that is over at once."""
    with Lease(store, Holder()) as lease:
        return await add(lease, data)


# --- what is read ------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_picture_tells_size_and_content() -> None:
    store = make_store()
    picture = await add_alone(store, drawn(1, 30, 20))
    assert (picture.width, picture.height) == (30, 20)
    pixels = await store.pixels(picture.media_id)
    assert pixels is not None
    assert pixels.media_id == picture.media_id
    assert pixels.rgb.shape == (20, 30, 3)
    assert pixels.rgb[0, 0].tolist() == [1, 0, 7]


@pytest.mark.anyio
async def test_a_file_that_is_known_is_not_decoded_again() -> None:
    store = make_store()
    with Lease(store, Holder()) as lease:
        first = await add(lease, drawn(1))
        assert await add(lease, drawn(1)) is first
        assert await add_alone(store, drawn(1)) is first
    assert await add_alone(store, drawn(1)) is first
    assert (store.n_decoded, store.n_images) == (1, 4)


@pytest.mark.anyio
async def test_many_that_bring_the_same_file_at_once_have_it_decoded_once() -> None:
    store = make_store()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(add_alone, store, drawn(1))
    assert (store.n_decoded, store.n_images) == (1, 8)
    assert store.n_bytes == FILE_BYTES


@pytest.mark.anyio
async def test_files_of_the_same_pixels_show_the_same_image() -> None:
    store = make_store()
    one, other = await add_alone(store, drawn(1)), await add_alone(store, drawn(1, kind="BMP"))
    assert one.media_id == other.media_id
    turned = await add_alone(store, drawn(1, 16, 24))
    assert turned.media_id != one.media_id


@pytest.mark.anyio
async def test_a_large_file_is_hashed_as_a_small_one() -> None:
    store = make_store()
    data = drawn(1, 300, 200, "BMP")
    assert len(data) > HASHED_AT_ONCE
    assert await store.digest_of(data) == sha256(data).digest()


@pytest.mark.anyio
async def test_what_cannot_be_read_fails_each_who_brings_it_and_is_not_kept() -> None:
    store, errors = make_store(), []

    async def add() -> None:
        with pytest.raises(InvalidMedia) as caught:
            await add_alone(store, BROKEN)
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(add)
    assert len({id(error) for error in errors}) == 3
    assert len({str(error) for error in errors}) == 1
    assert (store.n_bytes, store.n_images) == (0, 0)
    assert sha256(BROKEN).digest() not in store.files


@pytest.mark.anyio
async def test_an_image_beyond_the_limit_is_refused_while_another_is_decoded() -> None:
    store = make_store(n_pixels=400)
    async with anyio.create_task_group() as tasks:
        async with no_decode(store):
            tasks.start_soon(add_alone, store, drawn(1))
            await until_reading(store, 1)
            with anyio.fail_after(PATIENCE_S), pytest.raises(InvalidMedia, match="30 x 30"):
                await add_alone(store, drawn(2, 30, 30))
    assert store.n_decoded == 1


@pytest.mark.anyio
async def test_holders_take_turns_whatever_each_has_brought() -> None:
    store, order = make_store(), []
    greedy, modest = Holder(), Holder()

    async def read(holder: Holder, number: int) -> None:
        with Lease(store, holder) as lease:
            await add(lease, drawn(number))
            order.append(number)

    async with anyio.create_task_group() as tasks:
        async with no_decode(store):
            for holder, numbers in ((greedy, range(6)), (modest, (10, 11))):
                for number in numbers:
                    tasks.start_soon(read, holder, number)
                await until_turn(holder, len(numbers) - 1)
            await until_reading(store, 2)
    assert max(order.index(10), order.index(11)) <= 4
    assert min(order.index(10), order.index(11)) <= 1


@pytest.mark.anyio
async def test_a_file_is_not_kept_from_others_by_one_who_waits_for_the_turn() -> None:
    store, greedy = make_store(), Holder()

    async def read(holder: Holder, number: int) -> None:
        with Lease(store, holder) as lease:
            await add(lease, drawn(number))

    async with anyio.create_task_group() as tasks:
        async with greedy.turn:
            tasks.start_soon(read, greedy, 1)
            await until_turn(greedy, 1)
            with anyio.fail_after(PATIENCE_S):
                await read(Holder(), 1)
    assert store.n_decoded == 1


@pytest.mark.anyio
async def test_what_the_encoder_needs_waits_for_no_file_that_comes() -> None:
    store = make_store(pixel_bytes=100)
    with Lease(store, Holder()) as lease:
        picture = await add(lease, drawn(1))
        async with no_decode(store):
            with anyio.fail_after(PATIENCE_S):
                assert await store.pixels(picture.media_id) is not None


@pytest.mark.anyio
async def test_one_that_is_cancelled_leaves_the_file_to_others_who_wait_for_it() -> None:
    store = make_store()
    pictures: list[Picture] = []

    async def add() -> None:
        pictures.append(await add_alone(store, drawn(1)))

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as impatient:
        async with no_decode(store):
            impatient.start_soon(add_alone, store, drawn(1))
            await until_reading(store, 1)
            tasks.start_soon(add)
            impatient.cancel_scope.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
    assert len(pictures) == 1
    assert (store.n_decoded, store.n_bytes_in_use) == (1, 0)


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_files_that_nobody_uses_go_in_the_order_of_their_last_use() -> None:
    store = make_store(n_files=3.5)
    for number in range(3):
        await add_alone(store, drawn(number))
    await add_alone(store, drawn(0))
    await add_alone(store, drawn(3))
    assert [hash_of(drawn(number)) in store.files for number in range(3)] == [True, False, True]
    await add_alone(store, drawn(4))
    assert [hash_of(drawn(number)) in store.files for number in range(3)] == [True, False, False]


@pytest.mark.anyio
async def test_files_in_use_are_kept_and_what_has_no_room_beside_them_is_refused() -> None:
    store = make_store(n_files=2.5)
    with Lease(store, Holder()) as lease:
        await add(lease, drawn(1))
        with Lease(store, Holder()) as other:
            await add(other, drawn(2))
            with pytest.raises(Overloaded) as caught:
                await add_alone(store, drawn(3))
            assert caught.value.retryable
            assert caught.value.details == {
                "n_bytes": FILE_BYTES,
                "n_bytes_in_use": 2 * FILE_BYTES,
                "n_bytes_limit": int(2.5 * FILE_BYTES),
            }
        await add_alone(store, drawn(3))
        await add_alone(store, drawn(4))
        assert hash_of(drawn(1)) in store.files


@pytest.mark.anyio
async def test_a_file_larger_than_the_store_is_refused_for_good() -> None:
    with pytest.raises(InvalidMedia, match="bytes"):
        await add_alone(make_store(n_files=0.9), drawn(1))


@pytest.mark.anyio
async def test_a_file_is_recalled_by_its_hash_as_long_as_it_is_here() -> None:
    store = make_store(n_files=1.5)
    picture = await add_alone(store, drawn(1))
    with Lease(store, Holder()) as lease:
        assert lease.hold(hash_of(drawn(1)))
        assert await lease.read(hash_of(drawn(1))) is picture
        assert not lease.hold(bytes(32))
        assert store.n_bytes_in_use == FILE_BYTES
    await add_alone(store, drawn(2))
    with Lease(store, Holder()) as lease:
        assert not lease.hold(hash_of(drawn(1)))


@pytest.mark.anyio
async def test_one_that_is_being_read_is_waited_for_by_who_recalls_it() -> None:
    store, digest = make_store(), hash_of(drawn(1))
    recalled: list[Picture] = []

    async def recall() -> None:
        with Lease(store, Holder()) as lease:
            assert lease.hold(digest)
            recalled.append(await lease.read(digest))

    async with anyio.create_task_group() as tasks:
        async with no_decode(store):
            tasks.start_soon(add_alone, store, drawn(1))
            await until_reading(store, 1)
            assert digest in store.files
            tasks.start_soon(recall)
    assert len(recalled) == 1
    assert store.n_decoded == 1


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["end", "error", "cancel"])
async def test_a_lease_gives_all_back_once(way: str) -> None:
    store = make_store()
    with anyio.CancelScope() as scope:
        try:
            with Lease(store, Holder()) as lease:
                for number in (1, 2, 1):
                    await add(lease, drawn(number))
                assert store.n_bytes_in_use == 2 * FILE_BYTES
                if way == "error":
                    raise LookupError
                if way == "cancel":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
                lease.end()  # also who ends it himself ends it once
                assert store.n_bytes_in_use == 0
        except LookupError:
            pass
    assert (store.n_bytes_in_use, store.n_bytes) == (0, 2 * FILE_BYTES)


# --- pixels ------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_pixels_that_have_gone_are_decoded_again_from_any_file_that_shows_them() -> None:
    store = make_store(n_files=2.2, pixel_bytes=24 * 16 * 3)
    with Lease(store, Holder()) as lease:
        picture = await add(lease, drawn(1))
        await add_alone(store, drawn(1, kind="GIF"))
        await add_alone(store, drawn(2))  # its pixels have the room of the others
        assert store.pixels_at_hand(picture.media_id) is None
        pixels = await store.pixels(picture.media_id)
        assert pixels is not None
        assert pixels.rgb[0, 0].tolist() == [1, 0, 7]
        assert store.n_decoded == 4
        assert store.pixels_at_hand(picture.media_id) is not None


@pytest.mark.anyio
async def test_pixels_larger_than_all_that_may_be_kept_are_decoded_each_time() -> None:
    store = make_store(pixel_bytes=100)
    with Lease(store, Holder()) as lease:
        picture = await add(lease, drawn(1))
        for n_decoded in (2, 3):
            assert await store.pixels(picture.media_id) is not None
            assert store.n_decoded == n_decoded


@pytest.mark.anyio
async def test_without_a_file_there_are_no_pixels() -> None:
    store = make_store(n_files=1.5, pixel_bytes=100)
    picture = await add_alone(store, drawn(1))
    await add_alone(store, drawn(2))
    assert await store.pixels(picture.media_id) is None
    assert store.files._digests.keys() == {(await add_alone(store, drawn(2))).media_id}
