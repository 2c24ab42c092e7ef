import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from runnerd.core.batch import (
    Batch,
    BatchKind,
    KVRemove,
    SamplerClose,
    SamplerOpen,
    Sampling,
    Span,
    Step,
)
from runnerd.core.prompt import TextPart, TokensPart
from runnerd.engine.base import Engine, run_step
from runnerd.errors import InvalidRequest, NoKVSlot
from tests.engine.contract import EngineContract
from tests.engine.contract_cache import DecodeContract, ShiftContract
from tests.engine.driving import (
    GREEDY,
    PROMPTS,
    Lane,
    MakeEngine,
    apply,
    generate,
    generate_alone,
    tokens,
)
from tests.engine.llama_builders import MODEL, llama, llama_config, loaded

pytest.importorskip("llama_cpp")
pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

N_VOCAB = 49152
IM_START, IM_END = 1, 2
EIGHT = (
    *PROMPTS,
    "The opposite of hot is",
    "Monday, Tuesday, Wednesday,",
    "The quick brown fox jumps over the",
    "Water boils at a temperature of",
)


@pytest.fixture(scope="module")
def make_engine() -> MakeEngine:
    return llama


@pytest.fixture(scope="module")
def special_name() -> str:
    return "<|im_end|>"


@pytest.fixture(scope="module")
def engine(make_engine: MakeEngine) -> Iterator[Engine]:
    with make_engine() as engine:
        yield engine


class TestLlamaContract(EngineContract):
    pass


class TestUnifiedLlamaContract(DecodeContract, ShiftContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        with loaded(llama_config(kv="unified")) as engine:
            yield engine


# --- batching ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "n_slots", "n_ubatch"),
    [("split", 1, 512), ("split", 8, 512), ("unified", 8, 8)],
)
def test_prompts_together_give_what_each_gives_alone(
    kv: Literal["split", "unified"], n_slots: int, n_ubatch: int
) -> None:
    with loaded(llama_config(kv=kv, n_slots=n_slots, n_ubatch=n_ubatch)) as engine:
        prompts = [tokens(engine, text) for text in EIGHT[:n_slots]]
        alone = [generate_alone(engine, prompt, 8) for prompt in prompts]
        lanes = [Lane(slot, prompt, n_rows=6) for slot, prompt in enumerate(prompts)]
        assert generate(engine, lanes, 8) == alone


def test_without_flash_attention_a_prompt_may_be_cut_into_any_pieces_of_two_rows_or_more() -> None:
    with loaded(llama_config(flash_attn="off")) as engine:
        prompt = tokens(engine, PROMPTS[1])[:12]
        whole = generate_alone(engine, prompt, 8)
        for n_rows in (2, 3, 5, 6):  # none leaves a single row for the last piece
            assert generate(engine, [Lane(0, prompt, n_rows=n_rows)], 8) == [whole]


def test_where_the_cells_run_out_nothing_of_the_batch_is_stored() -> None:
    with loaded(llama_config(kv="unified", n_cells=256)) as engine:
        for slot_id in range(3):
            fill(engine, slot_id, 64)
        fill(engine, 3, 32)
        too_many = span_batch(Span(0, 3, 32, (5,) * 32), Span(0, 0, 64, (5,)))
        with pytest.raises(NoKVSlot):
            engine.decode(too_many)
        assert run_step(engine, Step(1, (), (too_many,))).n_batches == 0
        fill(engine, 3, 32, start=32)
        prompt = tokens(engine, PROMPTS[0])
        apply(engine, KVRemove(0, 0))
        assert len(generate_alone(engine, prompt, 4)) == 4


def test_a_slot_that_is_full_finds_no_room() -> None:
    with loaded(llama_config(n_slots=2)) as engine:
        for start in range(0, 256, 64):
            fill(engine, 0, 64, start)
        with pytest.raises(NoKVSlot):
            fill(engine, 0, 1, 256)


# --- what would end the process ------------------------------------------------------------


@pytest.mark.parametrize(
    "spans",
    [
        (),
        (Span(0, 0, 0, ()),),
        (Span(0, 0, 0, (5,) * 65),),
        (Span(0, 0, 0, (5, -1)),),
        (Span(0, 0, 0, (5, N_VOCAB)),),
        (Span(0, 0, 0, (2**40,)),),
        (Span(0, -1, 0, (5,)),),
        (Span(0, 4, 0, (5,)),),
        (Span(0, 0, 1, (5,)),),
        (Span(0, 0, -1, (5,)),),
        (Span(0, 0, 0, (5,)), Span(0, 0, 2, (5,))),
        (Span(0, 0, 0, (5,)), Span(0, 0, 0, (5,))),
        tuple(Span(0, 0, pos, (5,), wants_logits=True) for pos in range(5)),
    ],
    ids=[
        "no rows",
        "an empty span",
        "more rows than n_batch",
        "a negative token",
        "a token past the vocabulary",
        "a token past int32",
        "a negative slot",
        "a slot too many",
        "a gap before the first position",
        "a negative position",
        "a gap within the batch",
        "a position twice",
        "more outputs than slots",
    ],
)
def test_a_batch_that_llama_cpp_cannot_take_is_stopped_in_python(
    engine: Engine, spans: tuple[Span, ...]
) -> None:
    prompt = tokens(engine, PROMPTS[0])
    expected = generate_alone(engine, prompt, 2)
    apply(engine, KVRemove(0, 0), SamplerOpen(0, GREEDY))
    with pytest.raises((AssertionError, OverflowError)):
        engine.decode(span_batch(*spans))
    apply(engine, SamplerClose(0))
    assert generate_alone(engine, prompt, 2) == expected


def test_media_rows_are_stopped_in_python(engine: Engine) -> None:
    with pytest.raises(AssertionError, match="media"):
        engine.decode(Batch(BatchKind.MEDIA, (Span(0, 0, 0, (-5,)),)))


@pytest.mark.parametrize("slot_id", [-1, 4])
def test_an_edit_of_a_slot_that_is_not_there_is_stopped_in_python(
    engine: Engine, slot_id: int
) -> None:
    with pytest.raises(AssertionError, match=f"slot {slot_id}"):
        apply(engine, KVRemove(slot_id, 0))


# --- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", " ", "\n", "1", "é", "🙂", "\u0301", "a\0", "!?"])
def test_a_hundred_thousand_equal_characters_are_tokenized(engine: Engine, text: str) -> None:
    inputs = engine.expand([TextPart(text * 100_000)], add_bos=False).inputs
    assert b"".join(map(engine.token_bytes, inputs)) == text.encode() * 100_000


def test_no_control_token_can_be_written_as_plain_text(engine: Engine) -> None:
    for control in range(17):
        (name,) = (text for text in NAMES if control_of(engine, text) == control)
        inputs = engine.expand([TextPart(name), TextPart(name)], add_bos=False).inputs
        assert min(inputs) > 16


def test_tokenizing_goes_on_beside_a_step(engine: Engine) -> None:
    prompt = tokens(engine, PROMPTS[0])
    alone = generate_alone(engine, prompt, 12)
    text = [TextPart("The quick brown fox. " * 50)]
    expected = engine.expand(text)
    is_over = threading.Event()
    results = []

    def tokenize() -> None:
        while not is_over.is_set():
            results.append(engine.expand(text))

    thread = threading.Thread(target=tokenize)
    thread.start()
    try:
        assert generate_alone(engine, prompt, 12) == alone
    finally:
        is_over.set()
        thread.join()
    assert results == [expected] * len(results)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**32])
def test_a_token_outside_the_vocabulary_never_reaches_llama_cpp(engine: Engine, token: int) -> None:
    with pytest.raises(AssertionError, match=f"token {token} of {N_VOCAB}"):
        engine.token_bytes(token)
    with pytest.raises(InvalidRequest):
        engine.expand([TokensPart((token,))])


def test_the_model_describes_itself(engine: Engine) -> None:
    model = engine.model
    assert model.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (model.architecture, model.n_vocab, model.n_ctx_train) == ("llama", N_VOCAB, 8192)
    assert model.n_params == 134_515_008
    assert 90_000_000 < model.size_bytes < 100_000_000
    assert "<|im_start|>" in model.chat_template
    assert (model.bos_token, model.adds_bos) == (IM_START, False)
    assert IM_END in model.end_tokens


# --- sampling ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-30, 5e-324])
def test_a_temperature_next_to_nothing_is_greedy(engine: Engine, temperature: float) -> None:
    prompt = tokens(engine, PROMPTS[0])
    sampling = Sampling(temperature=temperature, seed=1)
    assert generate_alone(engine, prompt, 8, sampling) == generate_alone(engine, prompt, 8)


def test_the_number_of_earlier_draws_does_not_depend_on_batch_mates(engine: Engine) -> None:
    prompt = tokens(engine, PROMPTS[1])
    creative = Sampling(temperature=1.5, top_k=100, seed=11)
    alone = generate_alone(engine, prompt, 12, creative)
    lanes = [Lane(slot, prompt, replace(creative, seed=11 + slot), 8) for slot in range(4)]
    assert generate(engine, lanes, 12)[0] == alone


def span_batch(*spans: Span) -> Batch:
    return Batch(BatchKind.TOKENS, spans)


def fill(engine: Engine, slot_id: int, n_rows: int, start: int = 0) -> None:
    engine.decode(span_batch(Span(0, slot_id, start, (5,) * n_rows)))


NAMES = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
)


def control_of(engine: Engine, name: str) -> int:
    inputs = engine.expand([TextPart(name, special=True)], add_bos=False).inputs
    return inputs[0] if len(inputs) == 1 else -1
