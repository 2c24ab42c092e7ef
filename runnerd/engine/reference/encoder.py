"""The encoder: a row for each patch, drawn by the patch's pixels and its place in the grid."""

import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from runnerd.engine.base import EncodedImage, Pixels
from runnerd.engine.reference.faults import Faults
from runnerd.engine.reference.images import Grid, Tiling
from runnerd.engine.reference.model import Model
from runnerd.engine.reference.options import ReferenceOptions
from runnerd.engine.reference.pace import Pace
from runnerd.errors import EngineFailed


class Encoder:
    """Makes rows of images, in a thread other than that of the decodes, one call at a time."""

    def __init__(
        self, model: Model, tiling: Tiling | None, options: ReferenceOptions, faults: Faults
    ) -> None:
        self._model = model
        self._tiling = tiling
        self._mrope = options.mrope
        self._seconds = options.encode_ms / 1e3
        self._faults = faults
        self._pace = Pace()  # of its own: an abort is for decodes
        self._in_use = threading.Lock()

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        """See `Engine.encode`. A second call at the same time is an AssertionError."""
        assert self._in_use.acquire(blocking=False), "two calls of encode at the same time"
        try:
            return tuple(map(self._encode, images))
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Let no image take its time any more."""
        self._pace.close()

    def _encode(self, image: Pixels) -> EncodedImage | EngineFailed:
        if self._tiling is None:
            return EngineFailed("the model reads no images")
        started_at = time.monotonic()
        try:
            self._faults.before_encode()
        except EngineFailed as err:
            return err
        rgb = image.rgb
        assert rgb.dtype == np.uint8, f"pixels of type {rgb.dtype}"
        assert rgb.ndim == 3 == rgb.shape[2], f"pixels of shape {rgb.shape}"
        grid = self._tiling.grid(width=rgb.shape[1], height=rgb.shape[0])
        encoded = EncodedImage(self._rows(rgb, grid), _offsets(grid, self._mrope))
        if self._seconds:
            self._pace.wait_until(started_at + self._seconds)
        return encoded

    def _rows(self, rgb: NDArray[np.uint8], grid: Grid) -> NDArray[np.float32]:
        height, width, _ = rgb.shape
        lines = pairwise(y * height // grid.n_y for y in range(grid.n_y + 1))
        columns = list(pairwise(x * width // grid.n_x for x in range(grid.n_x + 1)))
        rows = []
        for y, (top, bottom) in enumerate(lines):
            for x, (left, right) in enumerate(columns):
                patch = rgb[top:bottom, left:right]
                place = f"{x},{y} of {grid.n_x},{grid.n_y}: {patch.shape}".encode()
                digest = blake2b(place + patch.tobytes(), digest_size=8).digest()
                rows.append(self._model.draw(int.from_bytes(digest, "big") >> 1))
        return np.array(rows, np.float32)


def _offsets(grid: Grid, mrope: bool) -> NDArray[np.int32]:
    """Return how far behind the first row of its band each row lies, by axis."""
    if not mrope:
        counts = [np.arange(grid.n_x * n_lines) for n_lines in grid.bands]
        return np.concatenate(counts).astype(np.int32)[np.newaxis]
    y = np.concatenate([np.arange(n_lines) for n_lines in grid.bands]).repeat(grid.n_x)
    x = np.tile(np.arange(grid.n_x), grid.n_y)
    return np.stack([np.zeros_like(x), y, x, np.zeros_like(x)]).astype(np.int32)
