"""A projector: what images become in a prompt, and the rows that are made of them.

libmtmd encodes one call at a time, which a lock sees to. What an image becomes may be asked at
any time, and never waits for that.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import islice
from threading import Lock

import numpy as np
import structlog

from runnerd.engine.base import EncodedImage, EngineConfig, Pixels
from runnerd.engine.llama.context_params import FLASH_ATTENTION
from runnerd.engine.llama.devices import handles_of
from runnerd.engine.llama.encoding import Rows, encode_chunks, offsets_of
from runnerd.engine.llama.largest_image import check_size, find_largest
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.mtmd import IMAGE, chunks_of, quiet_mtmd_load, run_of, text_of
from runnerd.engine.llama.mtmd import lib as mtmd
from runnerd.engine.llama.phases import Phases
from runnerd.engine.llama.picture import Picture
from runnerd.errors import BadModel, ConfigError, EngineFailed, InvalidMedia

N_PICTURES = 1024  # sizes of images of which is remembered what they become
# As many times the rows that were asked for: the projector's sides are multiples of a few pixels,
# which gives a long image some rows more.
IGNORED = 2

log = structlog.get_logger()

NativeProgress = Callable[[float, int | None], bool]


class Projector:
    """What makes rows of images. Close it before the model.

    `sees_ahead`: a row is to see the rows behind it, too, so that an image takes a pass of its own.
    `largest` is the image that takes the most of a context of `n_ctx`.
    """

    def __init__(self, path: str, handle: int, model: LlamaModel, n_ctx: int) -> None:
        self.path = path
        self.handle = handle
        self.sees_ahead = bool(mtmd.mtmd_decode_use_non_causal(handle, None))
        self._n_axes = model.n_axes
        self._n_embd: int = lib.llama_model_n_embd_inp(model.handle)
        self._lock = Lock()
        self._n_ctx = n_ctx
        self._read = lru_cache(N_PICTURES)(self._read_fitting)
        self.largest = find_largest(path, n_ctx, self._read_picture)
        self._check_fit(model.vocabulary.n_tokens)
        # Until there is a context; see `limit_passes`.
        self._n_ubatch = self.n_one_pass

    @property
    def n_one_pass(self) -> int:
        """The most rows that have to share a pass; 0: they go through in any number."""
        return max((run.n_rows for run in self.largest.picture.runs if run.one_pass), default=0)

    @property
    def is_encoding(self) -> bool:
        """Whether an encode runs, in another thread."""
        return self._lock.locked()

    def limit_passes(self, n_ubatch: int) -> None:
        """Let images be refused that need more rows in a pass."""
        self._n_ubatch = n_ubatch

    def picture(self, width: int, height: int) -> Picture:
        """Return what an image of a size becomes; see `PictureOf`."""
        check_size(width, height)
        picture = self._read(width, height)
        for run in picture.runs:
            if run.one_pass and run.n_rows > self._n_ubatch:
                raise InvalidMedia(
                    f"{width} x {height} pixels, {run.n_rows} rows in a pass",
                    f"at most {self._n_ubatch} rows",
                )
        return picture

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        """See `Engine.encode`."""
        with self._lock, ExitStack() as stack:
            taken = [self._take(stack, image) for image in images]
            flat = [chunk for chunks in taken for chunk in chunks]
            rows = iter(encode_chunks(self.handle, flat, self._n_embd))
            return tuple(self._joined(chunks, list(islice(rows, len(chunks)))) for chunks in taken)

    def close(self) -> bool:
        """Free it, unless an encode uses it; return whether it did."""
        if not self._lock.acquire(blocking=False):
            return False
        mtmd.mtmd_free(self.handle)
        return True

    def _take(self, stack: ExitStack, image: Pixels) -> list[int]:
        """Return the chunks of rows of an image, valid until the stack is left."""
        height, width, _ = image.rgb.shape
        rgb = np.ascontiguousarray(image.rgb)
        chunks = stack.enter_context(chunks_of(self.handle, width, height, rgb.ctypes.data))
        found = [chunk for chunk in chunks or () if mtmd.mtmd_input_chunk_get_type(chunk) == IMAGE]
        runs = tuple(run_of(self.handle, chunk) for chunk in found)
        assert runs == self.picture(width, height).runs, "its pixels change what an image becomes"
        return found

    def _joined(
        self, chunks: Sequence[int], found: Sequence[Rows | EngineFailed]
    ) -> EncodedImage | EngineFailed:
        rows: list[Rows] = []
        for each in found:
            if isinstance(each, EngineFailed):
                return each
            rows.append(each)
        offsets = [offsets_of(chunk, self._n_axes) for chunk in chunks]
        return EncodedImage(np.concatenate(rows), np.concatenate(offsets, axis=1))

    def _read_fitting(self, width: int, height: int) -> Picture:
        """Return what may be remembered: what is larger than a context can be so by far."""
        fact, picture = f"{width} x {height} pixels", self._read_picture(width, height)
        if picture is None:
            raise InvalidMedia(fact, "a shape that the model takes")
        if picture.n_inputs >= self._n_ctx:
            raise InvalidMedia(
                f"{fact}, {picture.n_inputs} inputs", f"less than the {self._n_ctx} of the context"
            )
        return picture

    def _read_picture(self, width: int, height: int) -> Picture | None:
        with chunks_of(self.handle, width, height, None) as chunks:
            if chunks is None:
                return None
            return Picture(
                tuple(
                    run_of(self.handle, chunk)
                    if mtmd.mtmd_input_chunk_get_type(chunk) == IMAGE
                    else text_of(chunk)
                    for chunk in chunks
                )
            )

    def _check_fit(self, n_vocab: int) -> None:
        """Refuse a projector that images cannot be marked for.

        libmtmd writes -1 for a token that the vocabulary has not, and would not survive it.
        """
        width, height = self.largest.width, self.largest.height
        with chunks_of(self.handle, width, height, None) as chunks:
            for chunk in chunks or ():
                is_text = mtmd.mtmd_input_chunk_get_type(chunk) != IMAGE
                if is_text and not all(0 <= token < n_vocab for token in text_of(chunk)):
                    raise BadModel(
                        f"{self.path}: the model's vocabulary lacks tokens that mark its images"
                    )


Load = Callable[[NativeProgress, int], Projector]


def load_projector(
    model: LlamaModel, config: EngineConfig, phases: Phases, n_threads: int, n_ctx: int
) -> Projector:
    """Load the projector of a configuration, with so many threads to encode.

    An image is to leave at least half of the context of `n_ctx` free, if nothing else was asked
    for and the projector takes images of any size: then it is loaded a second time.

    Raises:
        BadModel: libmtmd cannot run it, or it does not fit the model.
        ConfigError: images cannot have so few rows, or none fits in the context.
        LoadCancelled: `progress` said so.
    """
    phases.reach("projector", 0.0)
    load = partial(_load, model, config, phases, n_threads, n_ctx)
    wanted = config.n_image_rows
    projector = load(phases.native("projector", 0.0, 1.0 if wanted else 0.5), wanted)
    trained, n_most = projector.largest, n_ctx // 2
    if wanted and trained.n_rows_trained >= IGNORED * wanted:
        projector.close()
        raise ConfigError(
            f"images of {wanted} rows at most:"
            f" the projector makes up to {trained.n_rows_trained} of one"
        )
    if not wanted and trained.n_inputs_trained > n_most:
        projector.close()
        projector = _load_limited(load, phases.native("projector", 0.5), n_most)
        n_from, n_to = trained.n_inputs_trained, projector.largest.n_inputs_trained
        if n_to < n_from:
            log.info("images.limited", n_inputs_from=n_from, n_inputs_to=n_to)
        else:
            log.warning("images.not_limited", wanted=n_most, n_inputs=n_from)
    phases.reach("projector", 1.0)
    return projector


def _load_limited(load: Load, native: NativeProgress, n_most: int) -> Projector:
    """Load a projector that is to make fewer rows, or else as it was trained."""
    try:
        return load(native, n_most)
    except ConfigError:  # no image of it has so few
        return load(native, 0)


def _load(
    model: LlamaModel,
    config: EngineConfig,
    phases: Phases,
    n_threads: int,
    n_ctx: int,
    native: NativeProgress,
    n_image_rows: int,
) -> Projector:
    path = config.mmproj
    params = mtmd.mtmd_context_params_default()
    # With the output layer, as planned. By itself libmtmd would take any device that there is.
    devices = handles_of(model.placement.devices[-1:])
    params.use_gpu = bool(devices)
    params.device = devices[0] if devices else None
    params.print_timings = False
    params.warmup = False  # with an image that takes the most, and the passes after it
    params.n_threads = n_threads
    params.flash_attn_type = FLASH_ATTENTION[config.flash_attn]
    if n_image_rows:
        params.image_max_tokens = n_image_rows
    callback = mtmd.mtmd_progress_callback(native)  # alive until loaded
    params.progress_callback = callback
    with quiet_mtmd_load() as errors:
        handle: int | None = mtmd.mtmd_init_from_file(os.fsencode(path), model.handle, params)
    try:
        phases.check()
        if handle is None:
            words = " ".join("; ".join(errors).split())
            if n_image_rows and "image_max_pixels" in words:
                raise ConfigError(f"images of {n_image_rows} rows at most: {words}")
            raise BadModel(f"{path}: libmtmd cannot load it: {words}")
        return Projector(path, handle, model, n_ctx)
    except BaseException:
        if handle is not None:
            mtmd.mtmd_free(handle)
        raise
