"""The type of the KV cache: chosen after flash attention, and what it takes and gives."""

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from structlog.testing import capture_logs

pytest.importorskip("llama_cpp")

from runnerd.core.batch import KVCopy, KVRemove, KVShift
from runnerd.engine.base import EngineConfig, KVType
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.gguf import GGUFHeader, read_gguf
from runnerd.engine.llama.kv_type import choose_kv_type
from runnerd.engine.llama.shape import kv_bytes, plan_shape
from runnerd.errors import ConfigError
from tests.engine.driving import PROMPTS, apply, generate_alone, tokens
from tests.engine.gemma import gemma, is_installed
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import context_of, feed, loaded_llama

pytestmark = pytest.mark.llama

needs_smollm = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
needs_gemma = pytest.mark.skipif(not is_installed(), reason="the test model is not installed")
TYPES: tuple[KVType, ...] = ("f16", "q8_0", "q4_0")
TOKENS = tuple(int(token) for token in np.random.default_rng(9).integers(100, 40000, 60))


def header(*, architecture: str = "toy", **sizes: int) -> GGUFHeader:
    """Return the header of a model with two heads of 64, but for what is given."""
    sizes = {"embedding_length": 128, **{f"attention.{name}": n for name, n in sizes.items()}}
    metadata = {f"{architecture}.{name}": size for name, size in sizes.items()}
    return GGUFHeader(0, 3, architecture, 0, metadata | {f"{architecture}.attention.head_count": 2})


def choose(
    kv_type: KVType,
    flash_attn: Literal["auto", "on", "off"],
    model: GGUFHeader,
    *,
    on_cpu: bool = True,
) -> KVType:
    config = EngineConfig("", kv_type=kv_type, flash_attn=flash_attn)
    return choose_kv_type(config, model, on_cpu=on_cpu)


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("flash_attn", "on_cpu"), [("on", False), ("on", True), ("auto", True)])
def test_with_flash_attention_the_type_is_what_was_asked_for(
    kv_type: KVType, flash_attn: Literal["auto", "on"], on_cpu: bool
) -> None:
    with capture_logs() as lines:
        assert choose(kv_type, flash_attn, header(), on_cpu=on_cpu) == kv_type
    assert lines == []


@pytest.mark.parametrize(
    ("flash_attn", "architecture", "on_cpu"),
    [("auto", "toy", False), ("off", "toy", True), ("on", "grok", True), ("auto", "grok", True)],
)
def test_where_flash_attention_is_not_sure_the_type_is_f16_with_a_warning(
    flash_attn: Literal["auto", "on", "off"], architecture: str, on_cpu: bool
) -> None:
    with capture_logs() as lines:
        model = header(architecture=architecture)
        assert choose("q8_0", flash_attn, model, on_cpu=on_cpu) == "f16"
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("warning", "kv.type_replaced")
    assert (line["kv_type"], line["flash_attn"]) == ("q8_0", flash_attn)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (header(key_length=80), "the keys of this model's heads have 80"),
        (header(value_length=48), "the values of this model's heads have 48"),
        (header(key_length_swa=40), "the keys of this model's heads have 40"),
    ],
)
def test_heads_that_are_not_whole_blocks_are_refused_with_both_numbers(
    model: GGUFHeader, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"q4_0 has blocks of 32 values.*{message}"):
        choose("q4_0", "on", model)
    assert choose("f16", "on", model) == "f16"


def allocated(stderr: str) -> float:
    """Return the MiB of KV cache that llama.cpp says it has made."""
    return sum(map(float, re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", stderr)))


def planned(config: EngineConfig) -> float:
    file = read_gguf(config.model)
    n_bytes = kv_bytes(plan_shape(config, file), file)
    assert n_bytes is not None
    return n_bytes / 2**20


@needs_smollm
@pytest.mark.parametrize(("kv_type", "share"), [("f16", 1), ("q8_0", 34 / 64), ("q4_0", 18 / 64)])
def test_the_cache_takes_what_was_reckoned(
    capfd: pytest.CaptureFixture[str], kv_type: KVType, share: float
) -> None:
    config = llama_config(kv_type=kv_type, flash_attn="auto")
    with loaded_llama(config) as engine:
        assert len(generate_alone(engine, tokens(engine, PROMPTS[0]), 4)) == 4
    size = allocated(capfd.readouterr().err)
    assert size == pytest.approx(planned(config), abs=0.01)
    assert size == pytest.approx(planned(llama_config()) * share, abs=0.01)


@needs_gemma
def test_of_a_model_with_sliding_layers_each_type_takes_its_share_and_generates(
    capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = gemma(tmp_path_factory.mktemp("gemma")) or ""
    sizes = []
    for kv_type in TYPES:
        config = llama_config(model=path, n_ctx=1024, n_ubatch=64, kv_type=kv_type)
        with loaded_llama(config) as engine:
            assert len(generate_alone(engine, tokens(engine, PROMPTS[0]), 4)) == 4
        sizes.append(allocated(capfd.readouterr().err))
        assert sizes[-1] == pytest.approx(planned(config), abs=0.02)
    assert sizes == pytest.approx([sizes[0], sizes[0] * 34 / 64, sizes[0] * 18 / 64], abs=0.02)


@needs_smollm
class TestQuantised:
    @pytest.fixture(scope="class", params=["q8_0", "q4_0"])
    @classmethod
    def engine(cls, request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
        kv_type: KVType = request.param
        with loaded_llama(llama_config(kv_type=kv_type)) as engine:
            yield engine

    @pytest.fixture(autouse=True)
    def _emptied(self, engine: LlamaEngine) -> None:
        apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(4)))

    def test_a_copy_goes_on_as_its_source_to_the_last_bit(self, engine: LlamaEngine) -> None:
        feed(engine, 0, TOKENS[:50])
        apply(engine, KVCopy(0, 1, 50))
        rows = [feed(engine, slot_id, TOKENS[50:], 50) for slot_id in (0, 1)]
        assert np.array_equal(rows[0], rows[1])

    def test_a_shift_of_all_costs_precision_only(self, engine: LlamaEngine) -> None:
        # How far apart two positions are is all that counts. Of q4_0 it costs a lot.
        assert engine.limits.can_shift
        for slot_id in (0, 1):
            feed(engine, slot_id, TOKENS[:50])
        apply(engine, KVShift(1, 0, None, 10))
        assert context_of(engine).cells.n_past[1] == 60
        plain, shifted = (feed(engine, slot, TOKENS[50:], at) for slot, at in ((0, 50), (1, 60)))
        other = feed(engine, 2, TOKENS[::-1])
        assert np.linalg.norm(shifted - plain) < np.linalg.norm(other - plain) * 0.75
