"""An engine whose encoder a test can watch, hold up and let fail, and requests with images."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio import to_thread

from runnerd.core.emission import Emission
from runnerd.core.prompt import ImagePart, Part, TextPart
from runnerd.core.sequence import FinishReason, Options
from runnerd.engine.base import EncodedImage, EngineConfig, LoadProgress, Pixels
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.errors import EngineFailed, RequestError
from runnerd.media.files import Holder
from runnerd.media.store import Lease
from tests.daemon import PATIENCE_S, Daemon
from tests.media.drawn import add, drawn


class EncodeEngine(ReferenceEngine):
    """Keeps a list of the calls of `encode`, as what their images show; see `drawn`.

    A call waits at the gate while that is shut. Images in `bad` fail; `error` is raised.
    """

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.encodes: list[list[int]] = []
        self.bad: set[int] = set()
        self.error: Exception | None = None
        self._arrived = threading.Semaphore(0)
        self._may_pass = threading.Event()
        self._may_pass.set()

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        numbers = [int(image.rgb[0, 0, 0]) for image in images]
        self.encodes.append(numbers)
        self._arrived.release()
        self._may_pass.wait()
        if self.error is not None:
            raise self.error
        encoded = super().encode(images)
        return tuple(
            EngineFailed(f"image {number} is bad") if number in self.bad else each
            for number, each in zip(numbers, encoded, strict=True)
        )

    def shut(self) -> None:
        """Let encodes wait from now on."""
        self._may_pass.clear()

    def open(self) -> None:
        """Let encodes go on."""
        self._may_pass.set()

    async def at_encode(self) -> None:
        """Wait until another encode has begun."""
        with anyio.fail_after(PATIENCE_S):
            await to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)

    def close(self) -> None:
        self.open()
        super().close()


@dataclass(slots=True, eq=False)
class Request:
    """What a request has been told."""

    seq_id: int = 0
    tokens: list[int] = field(default_factory=list)
    ending: FinishReason | RequestError | None = None
    n_suspended: int = 0
    has_begun: anyio.Event = field(default_factory=anyio.Event)
    has_ended: anyio.Event = field(default_factory=anyio.Event)

    def listen(self, emission: Emission) -> None:
        if emission.token is not None:
            self.tokens.append(emission.token)
            self.has_begun.set()
        if emission.ending is not None:
            self.ending = emission.ending
            self.n_suspended = emission.sequence.n_suspended
            self.has_ended.set()


async def ask(daemon: Daemon, request: Request, *parts: int | str, n_tokens: int = 3) -> None:
    """Generate so many tokens from texts, and from images as numbers for `drawn`."""
    with Lease(daemon.runner.pictures, Holder()) as lease:
        inputs: list[Part] = [
            TextPart(part) if isinstance(part, str) else await image(lease, part) for part in parts
        ]
        submit(daemon, request, inputs, n_tokens)
        with anyio.fail_after(PATIENCE_S):
            await request.has_ended.wait()


async def image(lease: Lease, number: int, width: int = 24, height: int = 16) -> ImagePart:
    """Return a part of a prompt that shows what `drawn` makes of a number."""
    picture = await add(lease, drawn(number, width, height))
    return ImagePart(picture.media_id, picture.width, picture.height)


def submit(daemon: Daemon, request: Request, parts: Sequence[Part], n_tokens: int) -> None:
    """Submit a request whose images are leased."""
    prompt = daemon.engine.expand(parts)
    options = Options(max_tokens=n_tokens)
    request.seq_id = daemon.runner.submit(prompt, options, request.listen)


async def ask_together(
    daemon: Daemon, numbers: Iterable[int], width: int = 24, height: int = 16
) -> None:
    """Have requests with an image each come at the same moment, and end well."""
    with Lease(daemon.runner.pictures, Holder()) as lease:
        parts = [await image(lease, number, width, height) for number in numbers]
        requests = [Request() for _ in parts]
        for request, part in zip(requests, parts, strict=True):
            submit(daemon, request, [part], 1)
        for request in requests:
            with anyio.fail_after(PATIENCE_S):
                await request.has_ended.wait()
            assert request.ending == "length"


async def answer(daemon: Daemon, *parts: int | str, n_tokens: int = 3) -> Request:
    """Ask, and return what came of it."""
    request = Request()
    await ask(daemon, request, *parts, n_tokens=n_tokens)
    return request


async def until_running(daemon: Daemon, n_sequences: int) -> None:
    """Wait until so many sequences have slots: what they want of images is known then."""
    batcher = daemon.runner.batcher
    assert batcher is not None
    await daemon.until(lambda: len(batcher.residency.running) == n_sequences)
