"""The contract of images, over every kind of model, cache and image."""

from contextlib import AbstractContextManager
from typing import ClassVar, Literal

from msgspec.structs import replace

from runnerd.engine.base import Engine
from runnerd.engine.reference import ReferenceOptions
from tests.engine.contract_media import MediaContract
from tests.engine.reference_builders import SMALL, reference


class ReferenceMediaContract(MediaContract):
    options: ClassVar[ReferenceOptions] = SMALL
    kv: ClassVar[Literal["split", "unified"]] = "split"
    mark_names = ("\u00f8", "\\xf8", "<image_begin>")

    @classmethod
    def make_vision_engine(
        cls, *, n_slots: int = 4, n_ctx: int = 256, n_batch: int = 128, n_cells: int = 0
    ) -> AbstractContextManager[Engine]:
        return reference(
            cls.options,
            n_slots=n_slots,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=16,
            n_cells=n_cells,
            kv="auto" if n_cells else cls.kv,
        )

    @classmethod
    def make_blind_engine(cls) -> AbstractContextManager[Engine]:
        return reference(replace(cls.options, images=False))


class TestNonCausal(ReferenceMediaContract):
    pass


class TestCausal(ReferenceMediaContract):
    options = replace(SMALL, non_causal=False)


class TestUnifiedNonCausal(ReferenceMediaContract):
    kv = "unified"


class TestUnifiedCausalTiles(ReferenceMediaContract):
    options = replace(SMALL, non_causal=False, tiles=3)
    kv = "unified"


class TestNonCausalTiles(ReferenceMediaContract):
    options = replace(SMALL, tiles=2)


class TestCausalMrope(ReferenceMediaContract):
    options = replace(SMALL, non_causal=False, mrope=True, patch=8)


class TestNonCausalMropeTiles(ReferenceMediaContract):
    options = replace(SMALL, mrope=True, tiles=2, patch=8)
    kv = "unified"


class TestWindow(ReferenceMediaContract):
    options = replace(SMALL, window=12)


class TestWindowCausal(ReferenceMediaContract):
    options = replace(SMALL, window=12, spare=10, non_causal=False, mrope=True)


class TestRecurrent(ReferenceMediaContract):
    options = replace(SMALL, layers=1, recurrent=True)


class TestHybrid(ReferenceMediaContract):
    options = replace(SMALL, layers=3, recurrent=True, window=12, non_causal=False)
    kv = "unified"
