"""What runs an engine: the batcher, the decode loop, and the encoding of images."""

from collections.abc import Callable
from functools import partial

from runnerd.config import Config
from runnerd.core.batcher import Batcher
from runnerd.decode_loop import DecodeLoop
from runnerd.engine.base import Engine
from runnerd.engine_thread import EngineThread
from runnerd.figures import Figures
from runnerd.media.encoding import Encoding
from runnerd.media.store import PictureStore
from runnerd.step_watch import Watches


def open_loop(
    config: Config,
    engine: Engine,
    thread: EngineThread,
    figures: Figures,
    watches: Watches,
    pictures: PictureStore,
    fail: Callable[[str], None],
) -> tuple[Batcher, DecodeLoop]:
    """Return the batcher of a loaded engine, and the loop that runs its steps.

    `watches` see the steps, and the calls of the encoder, which is there where the model reads
    images. `fail` is called with the cause if the loop cannot go on.
    """
    target_itl_s = config.target_itl_ms / 1e3
    batcher = Batcher(engine.limits, engine, target_itl_s, config.checkpoint_mib * 2**20)
    make_encoding = None
    if engine.model.n_image_rows:
        cache_bytes = config.images.cache_bytes
        make_encoding = partial(
            Encoding, batcher, engine, pictures, figures, watches.encode, cache_bytes
        )
    loop = DecodeLoop(
        batcher, engine, thread, figures, watches.step, fail, target_itl_s, make_encoding
    )
    return batcher, loop
