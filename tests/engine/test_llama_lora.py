"""LoRA adapters: loaded by name, applied to whole passes, and taken off again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Adapter, KVRemove
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.errors import BadModel, LoadError, ModelMissing
from tests.engine.adapter_files import bad_alphas, lora, lora_of, lora_of_integers
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import Row, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

TOKENS = tuple(range(1000, 1020))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = (("one", lora(folder, seed=1)), ("two", lora(folder, seed=2)))
    with loaded_llama(llama_config(adapters=adapters)) as engine:
        yield engine


def run(engine: LlamaEngine, *adapters: Adapter, slot_id: int = 0) -> Row:
    engine.use_adapters(adapters)
    apply(engine, KVRemove(slot_id, 0))
    engine.use_adapters(adapters)
    return feed(engine, slot_id, TOKENS)


def test_the_model_names_its_adapters(engine: LlamaEngine) -> None:
    assert engine.model.adapters == ("one", "two")


def test_an_adapter_changes_what_comes_out_and_leaves_no_trace(engine: LlamaEngine) -> None:
    base = run(engine)
    assert not np.allclose(run(engine, Adapter("one")), base, atol=0.1)
    assert np.array_equal(run(engine), base)


def test_a_scale_of_next_to_nothing_is_the_base_model(engine: LlamaEngine) -> None:
    base = run(engine)
    np.testing.assert_allclose(run(engine, Adapter("one", 1e-30)), base, atol=1e-3)


def test_scales_and_sets_differ_and_each_comes_back_the_same(engine: LlamaEngine) -> None:
    sets = [
        (),
        (Adapter("one", 0.3),),
        (Adapter("one"),),
        (Adapter("two"),),
        (Adapter("one"), Adapter("two", 0.5)),
    ]
    first = [run(engine, *adapters) for adapters in sets]
    for index, row in enumerate(first):
        assert not any(np.allclose(row, other, atol=0.1) for other in first[:index])
    for adapters, row in reversed(list(zip(sets, first, strict=True))):
        assert np.array_equal(run(engine, *adapters), row)


def test_slots_with_different_adapters_take_turns(engine: LlamaEngine) -> None:
    expected = {name: run(engine, Adapter(name)) for name in ("one", "two")}
    apply(engine, KVRemove(0, 0), KVRemove(1, 0))
    rows: dict[str, Row] = {}
    for start in range(0, len(TOKENS), 10):
        for slot_id, name in enumerate(("one", "two")):
            engine.use_adapters((Adapter(name),))
            rows[name] = feed(engine, slot_id, TOKENS[start : start + 10], start)
    assert all(np.array_equal(rows[name], expected[name]) for name in rows)


def test_a_name_that_was_not_loaded_never_reaches_llama_cpp(engine: LlamaEngine) -> None:
    with pytest.raises(KeyError):
        engine.use_adapters((Adapter("three"),))


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda folder: str(folder / "none.gguf"), ModelMissing, "No such file"),
        (lambda folder: MODEL, BadModel, "general.type is 'model', expected 'adapter'"),
        (lambda folder: lora(folder, arch="gemma3"), BadModel, "'gemma3', expected 'llama'"),
        (lambda folder: lora(folder, kind="ia3"), BadModel, "'ia3', expected 'lora'"),
        (
            lambda folder: lora(folder, n_embd=640),
            BadModel,
            r"is \(576, 576\).*\(640, 4\) by \(4, 640\)",
        ),
        (lora_of_integers, BadModel, "blk.0.attn_q.weight is in whole numbers"),
    ],
    ids=["missing", "a model", "another architecture", "no lora", "another size", "integers"],
)
def test_what_is_no_adapter_for_the_model_is_refused_by_name_and_path(
    tmp_path: Path, write: Callable[[Path], str], error: type[LoadError], message: str
) -> None:
    path = write(tmp_path)
    with pytest.raises(error, match=message) as caught:
        with loaded_llama(llama_config(adapters=(("mine", path),))):
            pass
    assert "adapter mine" in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("alpha", bad_alphas(), ids=["integer", "double", "array", "long array"])
def test_a_scale_of_another_type_never_reaches_llama_cpp(tmp_path: Path, alpha: bytes) -> None:
    path = lora(tmp_path, alpha=alpha)
    with pytest.raises(BadModel, match=r"adapter mine.*adapter.lora.alpha is no float32"):
        with loaded_llama(llama_config(adapters=(("mine", path),))):
            pass


@pytest.mark.parametrize(
    ("weight", "a", "b", "message"),
    [
        ("blk.0.attn_q.weight", (576, 4), (5, 576), r"\(576, 576\).*\(576, 4\) by \(5, 576\)"),
        ("blk.0.attn_k.weight", (576, 4), (4, 576), r"\(576, 192\)"),
        ("blk.0.attn_q.weight", (576, 4, 3), (4, 576, 2), r"by \(4, 576, 2\)"),
        ("token_embd.weight", (4, 49152), (4, 576), "for its output"),
    ],
    ids=["two ranks", "another width", "experts where there are none", "shared embeddings"],
)
def test_a_change_that_does_not_fit_its_weight_never_reaches_llama_cpp(
    tmp_path: Path, weight: str, a: tuple[int, ...], b: tuple[int, ...], message: str
) -> None:
    path = lora_of(tmp_path, weight, a, b)
    with pytest.raises(BadModel, match=rf"adapter mine.*{weight}.*{message}"):
        with loaded_llama(llama_config(adapters=(("mine", path),))):
            pass
