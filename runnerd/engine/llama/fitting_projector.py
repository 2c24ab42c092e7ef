"""The projector of a load, and passes that are wide enough for its images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.fatal import blamed_for_aborts
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.phases import Phases
from runnerd.engine.llama.shape import ContextShape, check_kv_cache, raised_to
from runnerd.engine.llama.threads import share_threads
from runnerd.errors import BadModel, RequestError

if TYPE_CHECKING:  # to import it loads libmtmd, which only models that read images need
    from runnerd.engine.llama.projector import Projector

log = structlog.get_logger()


@contextmanager
def blamed(mmproj: str) -> Iterator[None]:
    """Take whatever goes wrong within the block for a fault of the projector, if there is one.

    Raises:
        BadModel: what would be wrong with one image is wrong with all.
    """
    if not mmproj:
        yield
        return
    with blamed_for_aborts(mmproj):
        try:
            yield
        except (AssertionError, RequestError) as err:
            raise BadModel(f"{mmproj}: the projector does not work: {err}") from err


def load_fitting_projector(
    model: LlamaModel,
    header: GGUFHeader,
    config: EngineConfig,
    shape: ContextShape,
    phases: Phases,
) -> "tuple[Projector, ContextShape]":
    """Load the projector; return it, and the shape with passes that its images fit in."""
    from runnerd.engine.llama.projector import load_projector

    with blamed(config.mmproj):
        n_threads = share_threads(shape.n_threads).encode
        projector = load_projector(model, config, phases, n_threads, shape.n_ctx)
    try:
        raised = raised_to(shape, projector.n_one_pass)
        projector.limit_passes(raised.n_ubatch)
        if raised != shape:
            log.info(
                "batch.raised",
                n_batch_from=shape.n_batch,
                n_batch_to=raised.n_batch,
                n_ubatch_from=shape.n_ubatch,
                n_ubatch_to=raised.n_ubatch,
            )
            if not model.placement.devices:
                check_kv_cache(raised, header)
    except BaseException:
        projector.close()
        raise
    return projector, raised
