"""Builders for tests of the llama engine, and the model that they load."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from runnerd.engine import open_engine
from runnerd.engine.base import Engine, EngineConfig, KVType
from runnerd.errors import ModelMissing
from runnerd.models import resolve_model


def _installed(name: str) -> str | None:
    try:
        return resolve_model(name)
    except ModelMissing:
        return None


MODEL = _installed("smollm2")


def llama_config(
    *,
    model: str = MODEL or "",
    n_slots: int = 4,
    n_ctx: int = 256,
    n_batch: int = 64,
    n_ubatch: int = 512,
    n_cells: int = 0,
    kv: Literal["auto", "split", "unified"] = "auto",
    flash_attn: Literal["auto", "on", "off"] = "on",
    kv_type: KVType = "f16",
    swa_full: bool = False,
    adapters: tuple[tuple[str, str], ...] = (),
    mmproj: str = "",
    n_image_rows: int = 0,
) -> EngineConfig:
    """Return settings under which passes are exact.

    With flash attention a row's logits do not depend on the other rows of the pass, as long as
    no slot brings 64 of them. One thread: two would wait for each other wherever the tests are
    not alone on the machine.
    """
    return EngineConfig(
        model=model,
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_cells=n_cells,
        kv=kv,
        flash_attn=flash_attn,
        n_threads=1,
        kv_type=kv_type,
        swa_full=swa_full,
        adapters=adapters,
        mmproj=mmproj,
        n_image_rows=n_image_rows,
    )


@contextmanager
def loaded(config: EngineConfig) -> Iterator[Engine]:
    """Load an engine for a `with` block."""
    engine = open_engine(config, lambda phase, fraction: True)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def llama(*, n_slots: int = 4, n_ctx: int = 256, n_batch: int = 64) -> Iterator[Engine]:
    """Make an engine for a `with` block: a `MakeEngine`."""
    with loaded(llama_config(n_slots=n_slots, n_ctx=n_ctx, n_batch=n_batch)) as engine:
        yield engine
