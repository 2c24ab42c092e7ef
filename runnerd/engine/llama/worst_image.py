"""The image that takes the most, tried before anything is served."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from runnerd.core.batch import Span
from runnerd.engine.base import Pixels
from runnerd.engine.llama.context import LlamaContext
from runnerd.engine.llama.groups import decode_groups
from runnerd.engine.llama.library import is_of_memory
from runnerd.errors import BadModel, EngineBroken, EngineFailed, NoKVSlot, OutOfMemory

if TYPE_CHECKING:  # to import it loads libmtmd
    from runnerd.engine.llama.projector import Projector


def try_worst_image(
    projector: "Projector",
    context: LlamaContext,
    reached: Callable[[float], None],
    *,
    has_window: bool,
) -> None:
    """Encode the image that takes the most, run its largest group, and forget both.

    The memory for either is to be missing now, or never. `reached` is told the fraction that is
    done in between, and may raise.

    Raises:
        OutOfMemory: the encoder failed for want of memory.
        BadModel: it failed otherwise, or makes no numbers; or the model failed to read them.
    """
    width, height = projector.largest.width, projector.largest.height
    picture = projector.largest.picture
    (encoded,) = projector.encode([Pixels(0, np.zeros((height, width, 3), np.uint8))])
    if isinstance(encoded, EngineFailed):
        fact = f"an image of {width} x {height} pixels, {picture.n_rows} rows: {encoded}"
        if is_of_memory(str(encoded)):
            raise OutOfMemory(fact)
        raise BadModel(f"{projector.path}: {fact}")
    reached(0.7)
    row0, largest = picture.largest()
    n_rows = largest.n_rows
    if not largest.one_pass:
        n_rows = min(n_rows, context.limits.n_batch)
    span = Span(0, 0, 0, (-1,) * n_rows, wants_logits=True, row0=row0, media=encoded)
    context.cells.clear()
    try:
        if largest.one_pass:
            decode_groups(context, [span], has_window=has_window)
        else:
            context.decode_media([span])
    except (EngineBroken, NoKVSlot) as err:
        raise BadModel(f"{projector.path}: a pass over {n_rows} rows of an image: {err}") from err
    context.cells.clear()
