"""The images of one request: read from files that came with it, or recalled, or asked for.

They are kept from then on until `end`, which is called when the request has its last answer.
"""

from collections import deque
from collections.abc import Callable

import anyio

from runnerd.core.prompt import ImagePart, Prompt
from runnerd.engine.base import Engine
from runnerd.errors import InvalidMedia, ShuttingDown
from runnerd.intake import Share
from runnerd.media.images import READABLE
from runnerd.media.store import Lease
from runnerd.options import parts_of
from runnerd.runner import Runner
from runnerd.turn import Turn
from runnerd.uploads import Uploads
from runnerd_protocol import messages as wire


class Attachments:
    """Images by the `indexes` of their parts in a prompt; each file is read once.

    Made in the order of the connection's requests, and to be ended. `share` is what the request
    counts for: its files no more once the store has them.
    """

    def __init__(self, indexes: list[int], runner: Runner, uploads: Uploads, share: Share) -> None:
        self._runner = runner
        self._uploads = uploads
        self._share = share
        self._lease = Lease(runner.pictures, uploads.holder, self._check_open)
        self._indexes = indexes
        self._digests: dict[int, bytes] = {}
        self._images: dict[bytes, ImagePart] = {}
        self._missing: dict[bytes, None] = {}  # by their hashes, as they are needed
        self._is_asking = False
        self._received: deque[tuple[bytes, Share]] = deque()
        self._turn = Turn(uploads.last)
        if indexes:
            uploads.last = self._turn
        self._news = anyio.Event()  # a file has come, or none can come any more

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def end(self) -> None:
        """Let go of them all; a second call does nothing."""
        self._turn.end()
        self._lease.end()

    # --- what is here ----------------------------------------------------------------------

    async def read(self, prompt: list[wire.Part]) -> list[wire.Part]:
        """Read the files that come with a prompt, and recall those that came before.

        Returns the prompt without the files: the store has them.

        Raises:
            RequestError: of an image that cannot be had; none is decoded if there is no room.
        """
        parts = {index: _media(prompt[index]) for index in self._indexes}
        await self._turn.come()
        for number, (index, part) in enumerate(parts.items()):
            await self._hold(number, index, part)
        self._turn.end()
        for digest in dict.fromkeys(self._digests.values()):
            if digest not in self._missing:
                await self._read(digest)
        self._share.shrink(sum(len(part.data) for part in parts.values()))
        bare = {index: wire.MediaPart(sha256=self._digests[index]) for index in parts}
        return [bare.get(index, part) for index, part in enumerate(prompt)]

    async def _hold(self, number: int, index: int, part: wire.MediaPart) -> None:
        """Find out which file a part stands for, and keep it if it is here."""
        if part.data:
            digest = await self._runner.pictures.digest_of(part.data)
            self._uploads.note(digest)
        elif part.sha256 is not None:
            digest = part.sha256
        else:
            raise InvalidMedia("an empty file", READABLE, index=number, field=_field(index))
        if part.sha256 not in (None, digest):
            fact = "data of another SHA-256"
            raise InvalidMedia(fact, "that of sha256", index=number, field=_field(index))
        self._digests[index] = digest
        if part.data:
            self._keep(digest, part.data)
            self._missing.pop(digest, None)
        elif digest not in self._uploads or not self._lease.hold(digest):
            self._missing[digest] = None

    def _keep(self, digest: bytes, data: bytes) -> None:
        try:
            self._lease.hold(digest, data)
        except InvalidMedia as err:
            raise self._located(err, digest) from err

    async def _read(self, digest: bytes) -> None:
        self._check_open()
        try:
            picture = await self._lease.read(digest)
        except InvalidMedia as err:
            raise self._located(err, digest) from err
        self._images[digest] = ImagePart(picture.media_id, picture.width, picture.height)

    def _check_open(self) -> None:
        """Let no file be decoded for a request that will not be begun; called in threads, too."""
        if self._runner.is_stopping:
            raise ShuttingDown("the daemon is shutting down")

    # --- what is not -----------------------------------------------------------------------

    async def fetch(self, ask: Callable[[list[bytes]], None]) -> None:
        """Ask for the files that are not here by their hashes, wait for them, and read them.

        Raises:
            InvalidMedia: one of them cannot be read, or has not come in time.
            ShuttingDown: no request is begun any more.
            RequestError: there is no room.
        """
        if not self._missing:
            return
        self._uploads.set_aside(self._share)
        self._is_asking = True
        self._uploads.n_lacking += len(self._missing)
        try:
            ask(list(self._missing))
            await self._receive()
        finally:
            self._is_asking = False
            self._uploads.n_lacking -= len(self._missing)
            while self._received:
                self._received.popleft()[1].give_back()

    async def _receive(self) -> None:
        """Wait as long as files come, but not for ever: for each that is lacking now once more."""
        uploads, asked_at = self._uploads, self._uploads.clock
        n_lacking = min(uploads.n_lacking, wire.MAX_MEDIA)
        last_at = asked_at + uploads.timeout_s * (1 + n_lacking)
        while self._missing:
            if self._received:
                await self._take_up(*self._received.popleft())
            else:
                came_at = max(asked_at, uploads.came_at)
                await self._wait(min(came_at + uploads.timeout_s, last_at))

    def put(self, data: bytes, share: Share) -> None:
        """Take a file that the client has sent for the request, whether it was asked for or not."""
        if self._is_asking:
            self._received.append((data, share))
            self._news.set()
        else:
            share.give_back()

    async def _take_up(self, data: bytes, share: Share) -> None:
        """Read a file that has come, if it was asked for."""
        try:
            digest = await self._runner.pictures.digest_of(data)
            if digest not in self._missing:
                return
            self._uploads.note(digest)
            self._uploads.came_at = self._uploads.clock
            self._uploads.n_lacking -= 1
            del self._missing[digest]
            self._keep(digest, data)
            await self._read(digest)
            self._uploads.came_at = self._uploads.clock
        finally:
            share.give_back()

    async def _wait(self, deadline: float) -> None:
        """Wait for news, or say why there will be none."""
        missing = next(iter(self._missing))
        self._check_open()
        if self._uploads.has_ended:
            why = InvalidMedia("a file that the client cannot send any more", "the file")
            raise self._located(why, missing)
        left_s = self._uploads.left_s(deadline)
        if left_s <= 0:
            fact = f"a file that was not sent within {self._uploads.timeout_s} s"
            raise self._located(InvalidMedia(fact, "the file"), missing)
        self._news = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ring_at, self._uploads.changed)
            tasks.start_soon(self._ring_at, self._runner.changed)
            with anyio.move_on_after(left_s):
                await self._news.wait()
            tasks.cancel_scope.cancel()

    async def _ring_at(self, event: anyio.Event) -> None:
        await event.wait()
        self._news.set()

    # --- what is made of them --------------------------------------------------------------

    def expand(self, engine: Engine, prompt: wire.Prompt) -> Prompt:
        """Return what an engine makes of a prompt with the images, once they are there.

        Raises:
            RequestError: as `Engine.expand`, of the first image that it does not take.
        """
        images = {index: self._images[digest] for index, digest in self._digests.items()}
        try:
            return engine.expand(parts_of(prompt, images))
        except InvalidMedia:
            for number, (index, image) in enumerate(images.items()):
                try:
                    engine.expand([image], add_bos=False)
                except InvalidMedia as err:
                    raise err.at(number, _field(index)) from err
            raise

    def _located(self, err: InvalidMedia, digest: bytes) -> InvalidMedia:
        """Return the error, of the first image of a file."""
        for number, index in enumerate(self._indexes):
            if self._digests.get(index) == digest:
                return err.at(number, _field(index))
        raise AssertionError("no image of this file")


def _media(part: wire.Part) -> wire.MediaPart:
    assert isinstance(part, wire.MediaPart)
    return part


def _field(index: int) -> str:
    return f"prompt[{index}]"
