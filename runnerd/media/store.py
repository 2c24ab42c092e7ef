"""The files of images that requests bring, and what is in them.

A file is known by its SHA-256, and is read once however many requests bring it. What a request in
progress has leased is kept. Its pixels may go sooner: they are decoded again where they are
needed.

    with Lease(pictures, holder) as lease:
        if lease.hold(digest, data):
            picture = await lease.read(digest)
            part = ImagePart(picture.media_id, picture.width, picture.height)
            ...  # until the last answer
"""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Self

from anyio import CapacityLimiter, to_thread
from cachetools import LRUCache

from runnerd.config import ImageLimits
from runnerd.engine.base import Pixels
from runnerd.errors import InvalidMedia
from runnerd.media.files import File, Files, Holder, Picture
from runnerd.media.images import Rgb, decode, media_id_of, read_header
from runnerd.sizes import HASHED_AT_ONCE
from runnerd.threads import in_thread

N_HEADERS = 4  # looked at at the same time


class PictureStore:
    """Files and pixels within limits. `n_images` were leased so far, `n_decoded` decoded."""

    def __init__(self, limits: ImageLimits) -> None:
        self.n_images = 0
        self.n_decoded = 0
        self.files = Files(limits.store_bytes)
        self._limits = limits
        self._pixels: LRUCache[int, Rgb] = LRUCache(
            limits.pixel_bytes, getsizeof=lambda rgb: rgb.nbytes
        )
        self._hashers = CapacityLimiter(1)
        self._headers = CapacityLimiter(N_HEADERS)  # never behind a decode: bombs are told at once
        # One each, since a decode may take many times the memory of its file: for requests that
        # come, and for the encoder, which running ones wait for.
        self._decoders, self._encoder = CapacityLimiter(1), CapacityLimiter(1)

    @property
    def n_bytes(self) -> int:
        """What the files here count for."""
        return self.files.n_bytes

    @property
    def n_bytes_in_use(self) -> int:
        """What those count for that requests have leased."""
        return self.files.n_bytes_in_use

    async def digest_of(self, data: bytes) -> bytes:
        """Return the SHA-256 of a file."""
        if len(data) <= HASHED_AT_ONCE:
            return sha256(data).digest()
        hashed = await to_thread.run_sync(sha256, data, limiter=self._hashers)
        return hashed.digest()

    async def pixels(self, media_id: int) -> Pixels | None:
        """Return an image that is ready to be encoded, if a file of it is here.

        Raises:
            InvalidMedia: it cannot be decoded once more.
        """
        at_hand = self.pixels_at_hand(media_id)
        file = self.files.that_shows(media_id) if at_hand is None else None
        if file is None:
            return at_hand
        rgb, _ = await self._decode(file.data, self._encoder, _go_on)
        self._keep_pixels(media_id, rgb)
        return Pixels(media_id, rgb)

    def pixels_at_hand(self, media_id: int) -> Pixels | None:
        """Return an image whose pixels have not been let go of since it was decoded."""
        rgb = self._pixels.get(media_id)
        return None if rgb is None else Pixels(media_id, rgb)

    async def read(self, file: File, holder: Holder, check: Callable[[], None]) -> Picture:
        """Return what is in a file in use; of those who ask for it one decodes it.

        `check` is called right before, and may raise what speaks against it.

        Raises:
            InvalidMedia: it is no image that can be read, or is beyond the limits.
            Unsupported: nothing is installed that could read images.
        """
        try:
            if _known(file) is None:
                look = partial(read_header, file.data, self._limits.n_pixels)
                await in_thread(look, self._headers)
            # Nobody holds the file who still waits for the turn: another's may come sooner.
            async with holder.turn, file.reading:
                return _known(file) or await self._read(file, check)
        except InvalidMedia as err:
            file.error = err.at(0, "")  # without what a traceback holds
            raise

    async def _read(self, file: File, check: Callable[[], None]) -> Picture:
        rgb, media_id = await self._decode(file.data, self._decoders, check)
        self._keep_pixels(media_id, rgb)
        height, width, _ = rgb.shape
        picture = Picture(media_id, width, height)
        self.files.note(file, picture)
        return picture

    async def _decode(
        self, data: bytes, limiter: CapacityLimiter, check: Callable[[], None]
    ) -> tuple[Rgb, int]:
        """Decode a file in a thread; one that has begun runs to its end whoever is cancelled."""
        decoded = await in_thread(partial(_decoded, data, self._limits.n_pixels, check), limiter)
        self.n_decoded += 1
        return decoded

    def _keep_pixels(self, media_id: int, rgb: Rgb) -> None:
        if rgb.nbytes <= self._limits.pixel_bytes:
            self._pixels[media_id] = rgb


def _known(file: File) -> Picture | None:
    """Return what was read in a file; raise why nothing could be."""
    if file.error is not None:
        raise file.error.at(0, "")
    return file.picture


def _decoded(data: bytes, n_pixels: int, check: Callable[[], None]) -> tuple[Rgb, int]:
    check()
    rgb = decode(data, n_pixels)
    return rgb, media_id_of(rgb)


def _go_on() -> None:
    """Let a decode begin."""


class Lease:
    """The pictures of one request, each kept once, until the block is left or `end` is called.

    `check` is called before a file is decoded, and may raise what speaks against it.
    """

    def __init__(
        self, store: PictureStore, holder: Holder, check: Callable[[], None] = _go_on
    ) -> None:
        self._store = store
        self._holder = holder
        self._check = check
        self._files: dict[bytes, File] = {}
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def hold(self, digest: bytes, data: bytes | None = None) -> bool:
        """Keep the file with this SHA-256 if it is (still) here, or with `data` in any case.

        Returns whether it is here.

        Raises:
            InvalidMedia: it is larger than the limit.
            Overloaded: the files of requests in progress leave no room for it.
        """
        assert not self._has_ended, "the lease has ended"
        if digest not in self._files:
            file = self._store.files.hold(self._holder, digest, data)
            if file is None:
                return False
            self._files[digest] = file
        return True

    async def read(self, digest: bytes) -> Picture:
        """Return the picture in a file that is kept; one that is known needs no reading.

        Raises:
            RequestError: as `PictureStore.read`, and what `check` raises.
        """
        picture = await self._store.read(self._files[digest], self._holder, self._check)
        self._store.n_images += 1
        return picture

    def end(self) -> None:
        """Let go of the pictures; a second call does nothing."""
        self._has_ended = True
        while self._files:
            _, file = self._files.popitem()
            self._store.files.release(self._holder, file)
