"""What is settled for a model in main memory."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.on_cpu import QUERY_TILE, prompt_tile, settled_on_cpu
from runnerd.engine.llama.processor import INTEL, cpu_vendor
from runnerd.engine.llama.shape import plan_shape

CONFIG = EngineConfig("", n_slots=2, n_ctx=4096)


def header(
    n_heads: int = 8, architecture: str = "llama", block_count: int = 4, sliding_window: int = 0
) -> GGUFHeader:
    metadata = {
        f"{architecture}.context_length": 65_536,
        f"{architecture}.block_count": block_count,
        f"{architecture}.embedding_length": 64 * n_heads,
        f"{architecture}.attention.head_count": n_heads,
        f"{architecture}.attention.sliding_window": sliding_window,
    }
    return GGUFHeader(0, 3, architecture, 0, metadata)


def flash_attn_of(
    config: EngineConfig, n_heads: int = 8, free_bytes: int = 1 << 40, vendor: str = INTEL
) -> str:
    return settled_on_cpu(config, header(n_heads), free_bytes, vendor).flash_attn


def test_short_passes_of_an_intel_are_faster_without_flash_attention() -> None:
    assert flash_attn_of(CONFIG) == "off"


@pytest.mark.parametrize("vendor", ["AuthenticAMD", ""])
def test_elsewhere_llama_cpp_chooses(vendor: str) -> None:
    assert flash_attn_of(CONFIG, vendor=vendor) == "auto"
    assert flash_attn_of(replace(CONFIG, flash_attn="off"), vendor=vendor) == "off"


def test_the_vendor_is_what_the_processor_tells(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n" * 2)
    assert cpu_vendor(cpuinfo) == INTEL
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert cpu_vendor(cpuinfo) == ""
    assert cpu_vendor(tmp_path / "none") == ""


@pytest.mark.parametrize("asked", ["on", "off"])
def test_what_is_asked_for_is_done(asked: Literal["on", "off"]) -> None:
    assert flash_attn_of(replace(CONFIG, flash_attn=asked)) == asked


def test_it_saves_memory_where_there_would_be_much_to_keep() -> None:
    assert flash_attn_of(CONFIG, n_heads=40) == "off"
    assert flash_attn_of(CONFIG, n_heads=48) == "auto"
    assert flash_attn_of(replace(CONFIG, n_ubatch=256), n_heads=48) == "off"
    assert flash_attn_of(replace(CONFIG, n_ctx=32_768)) == "auto"


def test_it_saves_memory_where_there_is_little() -> None:
    assert flash_attn_of(CONFIG, free_bytes=2**30) == "off"
    assert flash_attn_of(CONFIG, free_bytes=2**28) == "auto"


def test_a_quantised_cache_needs_it() -> None:
    assert flash_attn_of(replace(CONFIG, kv_type="q8_0")) == "auto"


@pytest.mark.parametrize(
    ("architecture", "n_swa", "flash_attn"),
    [
        ("gemma3", 512, "auto"),
        ("gemma3", 4096, "off"),  # a window as wide as the context is none
        ("gemma3", 0, "off"),
        ("gemma2", 512, "off"),  # half of its layers look back on everything
        ("llama", 512, "off"),  # which llama.cpp does not heed
    ],
)
def test_where_most_layers_look_back_on_a_window_there_is_nothing_to_gain(
    architecture: str, n_swa: int, flash_attn: str
) -> None:
    windowed = header(architecture=architecture, block_count=18, sliding_window=n_swa)
    assert settled_on_cpu(CONFIG, windowed, 1 << 40, INTEL).flash_attn == flash_attn


@pytest.mark.parametrize(
    ("config", "architecture", "n_tile"),
    [
        (replace(CONFIG, flash_attn="on"), "llama", QUERY_TILE),
        (CONFIG, "llama", QUERY_TILE),
        (replace(CONFIG, flash_attn="off"), "llama", 1),
        (replace(CONFIG, kv_type="q8_0"), "llama", 1),
        (replace(CONFIG, n_ubatch=64), "llama", QUERY_TILE),
        (replace(CONFIG, n_ubatch=32), "llama", 1),
        (CONFIG, "grok", 1),
    ],
)
def test_prompts_fill_a_tile_only_where_flash_attention_has_one(
    config: EngineConfig, architecture: str, n_tile: int
) -> None:
    shape = plan_shape(config, header(architecture=architecture))
    assert prompt_tile(config, shape, architecture) == n_tile
