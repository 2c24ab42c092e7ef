"""Embeddings by llama.cpp: of a model that generates, and of one that only encodes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from runnerd.core.prompt import TextPart
from runnerd.engine import open_engine
from runnerd.engine.base import Engine, EngineConfig, Pooling, Vectors
from runnerd.errors import BadModel, DecodeAborted, EngineFailed
from tests.engine.bert_files import CLS, SEP, SPECIAL, Bert, bert_file, random_bert
from tests.engine.driving import PROMPTS, Lane, generate, tokens
from tests.engine.llama_builders import MODEL, llama_config, loaded

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.engine import LlamaEngine  # noqa: E402 needs llama_cpp
from runnerd.engine.llama.library import lib  # noqa: E402
from tests.engine.rows import loaded_llama  # noqa: E402

needs_model = pytest.mark.skipif(MODEL is None, reason="the test model is not installed")

WORDS = ("▁the", "▁cat", "▁sat", "▁on", "▁mat", "s", "▁a", "▁dog", "▁ran", "▁far")
N_CTX = 64
ROWS_BYTES = 2 * 1024 * 49152 * 4  # two rows of logits for each of 1024 tokens
CLOSE = 1e-5
NEAR = 1e-2  # llama.cpp takes the curve of GELU from a table of half precision


def mixed(n_inputs: int, n_vocab: int, n_longest: int) -> list[tuple[int, ...]]:
    """Return inputs of seeded lengths and tokens, the longest one among them."""
    rng = np.random.default_rng(3)
    lengths = [n_longest, *rng.integers(1, n_longest // 2, n_inputs - 1)]
    return [tuple(rng.integers(100 % n_vocab, n_vocab, n).tolist()) for n in lengths]


def pooled(rows: Vectors, pooling: Pooling) -> Vectors:
    weights = np.full(len(rows), 1 / len(rows), np.float32)
    if pooling in ("cls", "last"):
        weights[:] = 0
        weights[0 if pooling == "cls" else -1] = 1
    vector: Vectors = weights @ rows
    return vector


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if MODEL is None:
        pytest.skip("the test model is not installed")
    with loaded(llama_config(n_ubatch=256)) as engine:
        yield engine


# --- a model that generates ----------------------------------------------------------------


def test_a_model_for_generation_pools_by_the_mean_and_tells_its_bounds(engine: Engine) -> None:
    info = engine.model
    assert (info.n_embd, info.n_embed, info.can_generate) == (576, 256, True)
    assert info.poolings == ("model", "mean", "last")
    inputs = [(5, 6, 7)]
    assert np.array_equal(engine.embed(inputs, "model"), engine.embed(inputs, "mean"))
    assert not np.allclose(engine.embed(inputs, "mean"), engine.embed(inputs, "last"))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_mixed_lengths_together_equal_each_alone(engine: Engine, pooling: Pooling) -> None:
    inputs = mixed(9, 40_000, 70)
    together = engine.embed(inputs, pooling)
    alone = np.concatenate([engine.embed([each], pooling) for each in inputs])
    lengths = np.linalg.norm(alone, axis=1, keepdims=True)
    assert np.abs((together - alone) / lengths).max() < CLOSE


def test_more_inputs_than_sequences_of_a_pass_are_all_there(engine: Engine) -> None:
    inputs = [(token,) for token in range(1000, 1100)]
    vectors = engine.embed(inputs, "mean")
    assert vectors.shape == (100, 576)
    assert np.allclose(vectors[99], engine.embed(inputs[99:], "mean")[0], atol=1e-4)


def test_more_rows_than_were_promised_never_reach_the_model(engine: Engine) -> None:
    with pytest.raises(AssertionError, match="257 tokens, at most 256"):
        engine.embed([(5,) * 200, (6,) * 57], "mean")
    for wrong in ((), (-1,), (49152,)):
        with pytest.raises(AssertionError):
            engine.embed([wrong], "mean")


@needs_model
@pytest.mark.parametrize("n_embed", [1, 65, 150])
def test_the_longest_input_may_be_of_any_length(n_embed: int) -> None:
    with loaded(replace(llama_config(), n_embed=n_embed)) as engine:
        assert engine.model.n_embed == n_embed
        assert engine.embed([(5,) * n_embed], "mean").shape == (1, 576)


def test_a_generation_is_not_touched_by_embeddings(engine: Engine) -> None:
    prompt = tokens(engine, PROMPTS[0])
    (expected,) = generate(engine, [Lane(0, prompt)], 8)
    engine.embed([prompt, (7, 8, 9)], "mean")
    assert generate(engine, [Lane(1, prompt)], 8) == [expected]


@needs_model
def test_too_little_memory_fails_the_request_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with loaded(llama_config()) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
            with pytest.raises(EngineFailed, match="1048576 are available"):
                engine.embed([(5, 6)], "mean")
        assert generate(engine, [Lane(0, tokens(engine, "Once"))], 4)
        assert np.isfinite(engine.embed([(5, 6)], "mean")).all()


def stop_on_asking(engine: LlamaEngine, n_nodes: int) -> object:
    """Have passes stopped when llama.cpp asks for the n-th time; keep what this returns alive."""
    context = engine._embedder._context
    assert context is not None
    n_asked = 0

    def asked(_: int | None) -> bool:
        nonlocal n_asked
        n_asked += 1
        if n_asked == n_nodes:
            engine.set_abort(True)
        return n_asked >= n_nodes

    callback = lib.ggml_abort_callback(asked)
    lib.llama_set_abort_callback(context._handle, callback, None)
    return callback


@needs_model
@pytest.mark.parametrize("n_nodes", [1, 700, 1500])
def test_a_pass_that_is_stopped_leaves_nothing_behind(n_nodes: int) -> None:
    with loaded_llama(llama_config(n_ubatch=256)) as engine:
        inputs = mixed(9, 40_000, 50)
        expected = engine.embed(inputs, "mean")
        callback = stop_on_asking(engine, n_nodes)
        with pytest.raises(DecodeAborted):
            engine.embed(inputs, "mean")
        with pytest.raises(DecodeAborted):
            engine.embed(inputs, "last")  # with a context made while passes are to stop
        engine.set_abort(False)
        assert np.array_equal(engine.embed(inputs, "mean"), expected)
        del callback


@needs_model
def test_a_context_of_one_pooling_makes_room_for_that_of_another() -> None:
    with loaded(replace(llama_config(), n_embed=1024)) as engine:
        memory = psutil.Process().memory_info
        before = memory().vms  # most of it is touched by long inputs only
        engine.embed([(5, 6)], "mean")
        one = memory().vms - before
        expected = engine.embed([(5, 6, 7)], "mean")
        for _ in range(3):
            engine.embed([(5, 6)], "last")
            assert np.array_equal(engine.embed([(5, 6, 7)], "mean"), expected)
        assert memory().vms - before < one + ROWS_BYTES // 2


# --- a model that encodes ------------------------------------------------------------------


def encoder(folder: Path, pooling_type: int | None = 1, n_embed: int = 0) -> tuple[Engine, Bert]:
    bert = random_bert(n_vocab=len(SPECIAL) + len(WORDS), n_ctx=N_CTX)
    path = folder / "bert.gguf"
    path.write_bytes(bert_file(bert, WORDS, pooling_type))
    config = EngineConfig(str(path), n_slots=2, n_threads=1, n_embed=n_embed)
    return open_engine(config, lambda phase, fraction: True), bert


def test_an_encoder_is_for_embeddings_only_and_says_so(tmp_path: Path) -> None:
    engine, _ = encoder(tmp_path)
    info = engine.model
    assert (info.architecture, info.can_generate) == ("bert", False)
    assert (info.n_embd, info.n_embed) == (32, N_CTX)
    assert info.poolings == ("model", "mean", "last", "cls")
    assert engine.limits.n_ctx == N_CTX
    engine.close()
    engine.close()


def test_a_text_stands_between_the_tokens_that_an_encoder_was_trained_with(tmp_path: Path) -> None:
    engine, _ = encoder(tmp_path)
    first = len(SPECIAL)
    inputs = engine.expand([TextPart("The cats sat")]).inputs + engine.model.embed_suffix
    assert inputs == (CLS, first, first + 1, first + 5, first + 2, SEP)
    engine.close()


@pytest.mark.parametrize("pooling", ["model", "mean", "cls", "last"])
def test_an_encoder_gives_what_its_weights_say(tmp_path: Path, pooling: Pooling) -> None:
    engine, bert = encoder(tmp_path)
    inputs = mixed(6, 15, 20)
    vectors = engine.embed(inputs, pooling)
    expected = np.stack([pooled(bert.rows(each), pooling) for each in inputs])
    assert np.abs(vectors - expected).max() < NEAR * np.abs(expected).max()
    alone = np.concatenate([engine.embed([each], pooling) for each in inputs])
    assert np.abs(vectors - alone).max() < CLOSE
    engine.close()


@pytest.mark.parametrize(("pooling_type", "pooling"), [(None, "mean"), (2, "cls"), (3, "last")])
def test_the_file_says_how_its_model_pools(
    tmp_path: Path, pooling_type: int | None, pooling: Pooling
) -> None:
    engine, _ = encoder(tmp_path, pooling_type)
    inputs = [(CLS, 7, 8, SEP)]
    assert np.array_equal(engine.embed(inputs, "model"), engine.embed(inputs, pooling))
    engine.close()


def test_a_file_that_names_no_pooling_on_purpose_has_none_of_its_own(tmp_path: Path) -> None:
    engine, _ = encoder(tmp_path, 0)
    assert engine.model.poolings == ("mean", "last", "cls")
    engine.close()


def test_a_model_that_ranks_is_of_no_use_here(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="neither generates text nor makes embeddings"):
        encoder(tmp_path, 4)


def test_an_encoder_takes_no_more_than_it_was_trained_for(tmp_path: Path) -> None:
    engine, _ = encoder(tmp_path, n_embed=4096)
    assert engine.model.n_embed == N_CTX
    assert engine.embed([(CLS, *([7] * (N_CTX - 2)), SEP)], "mean").shape == (1, 32)
    engine.close()
