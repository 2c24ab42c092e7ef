"""Images become rows beside generation, on a thread of their own.

An image is encoded when a sequence that has a slot needs its rows, once for all who need them,
and what comes of it is kept by its content. Only the decode loop touches the batcher: before it
plans it settles what has been encoded, and afterwards it looks at what is wanted.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic

import anyio
import structlog
from cachetools import LRUCache

from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.engine.base import EncodedImage, Engine, Pixels
from runnerd.engine_thread import EngineThread
from runnerd.errors import EngineFailed, RequestError
from runnerd.figures import Figures
from runnerd.media.store import PictureStore
from runnerd.step_watch import StepWatch

log = structlog.get_logger()

IMAGES_AT_ONCE = 8
PIXELS_AT_ONCE = 2**22  # of more than one image: their pixels are held while they are encoded
NO_MEMORY = "there is no memory to encode an image"
AT_ONCE_S = 0.5  # likewise, going by the last one: who needs the first waits for all of them


class Encoding:
    """Has the images encoded that sequences want. `wake` is called when one is there.

    `watch` sees each call of the encoder; it is for others to run.
    """

    def __init__(
        self,
        batcher: Batcher,
        engine: Engine,
        pictures: PictureStore,
        figures: Figures,
        watch: StepWatch,
        cache_bytes: int,
        wake: Callable[[], None],
    ) -> None:
        self.watch = watch
        self._batcher = batcher
        self._engine = engine
        self._pictures = pictures
        self._figures = figures
        self._cache_bytes = cache_bytes
        self._cache: LRUCache[int, EncodedImage] = LRUCache(
            cache_bytes, getsizeof=lambda encoded: encoded.n_bytes
        )
        self._wake = wake
        self._wanted: list[int] = []  # and not running, in order of need
        self._has_wanted = anyio.Event()
        self._running: tuple[int, ...] = ()
        self._image_s = AT_ONCE_S  # that the last one took
        self._outcomes: dict[int, EncodedImage | RequestError] = {}

    @property
    def cache_bytes(self) -> int:
        """Memory of the encoded images that are kept."""
        return int(self._cache.currsize)

    # --- for the decode loop ---------------------------------------------------------------

    def settle(self) -> list[Emission]:
        """Hand over what was encoded since; end the sequences whose images could not be."""
        emissions: list[Emission] = []
        for media_id, outcome in self._outcomes.items():
            if isinstance(outcome, RequestError):
                emissions += self._batcher.fail_media(media_id, outcome)
            else:
                self._batcher.offer_media(media_id, outcome)
        self._outcomes.clear()
        return emissions

    def look(self) -> bool:
        """Have encoded what is wanted now; return whether some of it was there already."""
        wanted: list[int] = []
        has_offered = False
        for media_id in self._batcher.wanted_media():
            encoded = self._cache.get(media_id)
            if encoded is not None:
                self._batcher.offer_media(media_id, encoded)
                has_offered = True
            elif media_id not in self._running:
                wanted.append(media_id)
        self._wanted = wanted
        if wanted:
            self._has_wanted.set()
        return has_offered

    # --- the encoding ----------------------------------------------------------------------

    async def run(self) -> None:
        """Encode what is wanted until cancelled; an encode that has begun is not waited for."""
        thread = EngineThread("encoder")
        try:
            while True:
                await self._has_wanted.wait()
                if self._wanted:
                    await self._encode_next(thread)
                else:
                    self._has_wanted = anyio.Event()
                    self.watch.rest()
        finally:
            thread.close()

    async def _encode_next(self, thread: EngineThread) -> None:
        """Encode what is needed first, and what may go with it."""
        first = self._wanted.pop(0)
        self._running = (first,)
        try:
            image = await self._pictures.pixels(first)
        except RequestError as err:  # it was decoded before: whoever sent it did nothing wrong
            self._end({first: EngineFailed(f"an image cannot be decoded once more: {err}")})
            return
        if image is None:
            self._end({first: EngineFailed("the file of an image is not here any more")})
            return
        images = [image, *self._beside(image)]
        self._running = tuple(each.media_id for each in images)
        encoded = await self._encode(thread, images)
        self._end(dict(zip(self._running, encoded, strict=True)))

    def _beside(self, first: Pixels) -> list[Pixels]:
        """Take what is needed next, is decoded, and does not hold up the first for long."""
        images: list[Pixels] = []
        n_images = min(IMAGES_AT_ONCE, int(AT_ONCE_S / max(self._image_s, 1e-9)))
        n_pixels = first.n_pixels
        while self._wanted and len(images) + 1 < n_images:
            image = self._pictures.pixels_at_hand(self._wanted[0])
            if image is None or n_pixels + image.n_pixels > PIXELS_AT_ONCE:
                break
            n_pixels += image.n_pixels
            images.append(image)
            del self._wanted[0]
        return images

    async def _encode(
        self, thread: EngineThread, images: list[Pixels]
    ) -> tuple[EncodedImage | EngineFailed, ...]:
        started_at = monotonic()
        self.watch.begin(started_at)
        call = partial(self._engine.encode, images)
        encoded: tuple[EncodedImage | EngineFailed, ...]
        try:
            encoded = await thread.call(call, abandon_on_cancel=True)
        except (EngineFailed, MemoryError) as err:
            failed = err if isinstance(err, EngineFailed) else EngineFailed(NO_MEMORY)
            encoded = (failed,) * len(images)
        finally:
            self.watch.end()
        elapsed_s = monotonic() - started_at
        self._image_s = elapsed_s / len(images)
        self._figures.encode_s += elapsed_s
        n_rows = sum(len(each.rows) for each in encoded if isinstance(each, EncodedImage))
        encode_ms = round(elapsed_s * 1e3, 1)
        log.debug("images.encoded", n_images=len(images), n_rows=n_rows, encode_ms=encode_ms)
        return encoded

    def _end(self, outcomes: dict[int, EncodedImage | RequestError]) -> None:
        """Keep what was encoded, and have the decode loop settle all of it."""
        for media_id, outcome in outcomes.items():
            if isinstance(outcome, RequestError):
                log.warning("image.failed", media_id=media_id, error=str(outcome))
                continue
            self._figures.n_images_encoded += 1
            if outcome.n_bytes <= self._cache_bytes:
                self._cache[media_id] = outcome
        self._running = ()
        self._outcomes |= outcomes
        self._wake()
