"""The contract of images, over projectors that make llama.cpp do all that it can do with them."""

from contextlib import AbstractContextManager
from typing import ClassVar, Literal

import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.prompt import Prompt
from runnerd.engine.base import Engine
from tests.engine.contract_media import MediaContract
from tests.engine.feeding import prompt_of
from tests.engine.llama_builders import MODEL, llama_config, loaded
from tests.engine.vision_files import (
    VisionModel,
    gemma3,
    needs_gemma,
    phi4,
    qwen2vl,
    tiny_idefics3,
)

MOST_ROWS = 64  # as few as these tests need: the most is encoded while loading

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]


class LlamaMediaContract(MediaContract):
    """With settings under which passes are exact: see `llama_config`."""

    kv: ClassVar[Literal["split", "unified"]] = "split"
    tolerance = 1e-3

    @classmethod
    def files(cls) -> VisionModel:
        return phi4(MOST_ROWS)

    @classmethod
    def make_vision_engine(
        cls, *, n_slots: int = 4, n_ctx: int = 256, n_batch: int = 128, n_cells: int = 0
    ) -> AbstractContextManager[Engine]:
        files = cls.files()
        config = llama_config(
            model=files.model,
            mmproj=files.mmproj,
            n_slots=n_slots,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=128,
            n_cells=n_cells,
            kv="auto" if n_cells else cls.kv,
            flash_attn="on",
            n_image_rows=MOST_ROWS,
        )
        return loaded(config)

    @classmethod
    def make_blind_engine(cls) -> AbstractContextManager[Engine]:
        return loaded(llama_config(model=cls.files().model))


class TestCausal(LlamaMediaContract):
    pass


class TestTiles(LlamaMediaContract):
    """In one run of cells it depends on the others in which order a slot's cells are summed up."""

    kv = "unified"
    tolerance = 0.01
    mark_names = ("<fake_token_around_image>", "<global-img>")

    @classmethod
    def files(cls) -> VisionModel:
        return tiny_idefics3()

    def prompts(self, engine: Engine) -> list[Prompt]:
        """Return prompts of an image each: its marks are many, and each place is cut."""
        red, blue, green = self.pictures()
        return [
            prompt_of(engine, "see ", red, " and say"),
            prompt_of(engine, blue, "is it"),
            prompt_of(engine, "one", green, "two"),
            prompt_of(engine, "and last", green),
        ]


@needs_gemma
class TestNonCausal(LlamaMediaContract):
    """Its quantised weights blow up last bits: so far plain text differs, too, in other pieces.

    Another image, or one that does not see all of itself, is further away.
    """

    tolerance = 0.5
    mark_names = ("<start_of_image>", "<end_of_image>")

    @classmethod
    def files(cls) -> VisionModel:
        return gemma3(grid=4)


@needs_gemma
class TestNonCausalUnified(TestNonCausal):
    kv = "unified"


class TestMrope(LlamaMediaContract):
    """Random weights make more of the last bits than trained ones do."""

    tolerance = 0.03
    mark_names = ("<|vision_start|>", "<|vision_end|>")

    @classmethod
    def files(cls) -> VisionModel:
        return qwen2vl()


class TestMropeUnified(TestMrope):
    kv = "unified"
