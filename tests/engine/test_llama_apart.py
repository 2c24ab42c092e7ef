"""A pass over rows that generate and rows of prompts, which llama.cpp evaluates apart."""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import KVRemove, Span
from runnerd.engine.llama.engine import LlamaEngine
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import Row, context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

PROMPTS = [
    tuple(int(token) for token in np.random.default_rng(seed).integers(100, 40000, 600))
    for seed in range(4)
]
LONG = 2500
CLOSE = 1e-3


@pytest.fixture(scope="module")
def exact() -> Iterator[LlamaEngine]:
    with loaded_llama(llama_config(n_slots=4, n_ctx=768, n_batch=128, n_ubatch=64)) as engine:
        yield engine


@pytest.fixture(scope="module")
def without_flash() -> Iterator[LlamaEngine]:
    """One whose last slot is much longer than any other."""
    config = llama_config(n_slots=5, n_ctx=2560, n_batch=256, n_ubatch=256, flash_attn="off")
    with loaded_llama(config) as engine:
        feed(engine, 4, PROMPTS[0] * 4 + PROMPTS[1][:100], n_rows=256)
        yield engine


def begin(engine: LlamaEngine, *depths: int) -> None:
    """Let each slot hold so much of its prompt."""
    apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(4)))
    for slot_id, n_past in enumerate(depths):
        feed(engine, slot_id, PROMPTS[slot_id][:n_past])


def n_micro_batches(engine: LlamaEngine, *spans: Span) -> int:
    """Return how many graphs a pass runs, by how often llama.cpp asks whether to go on."""
    context = context_of(engine)

    def n_asked(*these: Span) -> int:
        with context.abort.counting(context._handle) as n_nodes:
            context.decode(these)
        apply(engine, *(KVRemove(span.slot_id, span.pos) for span in these))
        return n_nodes()

    n, n_rest = divmod(n_asked(*spans), n_asked(spans[0]))
    assert n_rest == 0
    return n


def row(slot_id: int, pos: int) -> Span:
    return Span(slot_id, slot_id, pos, (11 + slot_id,), wants_logits=True)


@pytest.mark.parametrize("chosen", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (0, 2, 3)])
def test_rows_come_in_the_order_of_their_spans(exact: LlamaEngine, chosen: tuple[int, ...]) -> None:
    begin(exact, 40, 0, 40)
    spans = (
        row(0, 40),
        Span(1, 1, 0, PROMPTS[1][:40], wants_logits=True),
        row(2, 40),
        Span(3, 3, 0, PROMPTS[3][:50], wants_logits=True),
    )
    alone: dict[int, Row] = {}
    for span in spans:
        alone[span.slot_id] = context_of(exact).decode([span])[0].copy()
        apply(exact, KVRemove(span.slot_id, span.pos))
    rows = context_of(exact).decode([spans[index] for index in chosen])
    assert np.array_equal(rows, [alone[index] for index in chosen])


def test_a_prompt_that_gives_no_logits_leaves_those_of_the_others(exact: LlamaEngine) -> None:
    begin(exact, 40, 0, 40)
    first, third = row(0, 40), row(2, 40)
    expected = context_of(exact).decode([first, third]).copy()
    apply(exact, KVRemove(0, 40), KVRemove(2, 40))
    rows = context_of(exact).decode([first, Span(1, 1, 0, PROMPTS[1][:40]), third])
    assert np.array_equal(rows, expected)


def test_rows_that_generate_share_a_micro_batch_that_a_prompt_has_no_part_in(
    without_flash: LlamaEngine,
) -> None:
    begin(without_flash, 40, 40, 40)
    generating = [row(slot_id, 40) for slot_id in range(3)]
    assert n_micro_batches(without_flash, *generating) == 1
    prompt = Span(3, 3, 0, PROMPTS[3][:64])
    assert n_micro_batches(without_flash, *generating, prompt) == 2


def test_a_sequence_that_is_much_longer_has_a_micro_batch_of_its_own(
    without_flash: LlamaEngine,
) -> None:
    begin(without_flash, 0, 0, 40, 40)
    others = [row(2, 40), row(3, 40)]
    assert n_micro_batches(without_flash, *others) == 1
    assert n_micro_batches(without_flash, *others, row(4, LONG)) == 2


def test_what_is_apart_gives_what_each_gives_alone(without_flash: LlamaEngine) -> None:
    prompt = Span(2, 2, 40, PROMPTS[2][40:90], wants_logits=True)
    spans = row(0, 40), prompt, row(3, 40), row(4, LONG)
    begin(without_flash, 40, 0, 40, 40)
    rows = context_of(without_flash).decode(spans).copy()
    apply(without_flash, *(KVRemove(span.slot_id, span.pos) for span in spans))
    alone = [context_of(without_flash).decode([span])[0].copy() for span in spans]
    assert np.allclose(rows, alone, atol=CLOSE)


def test_slots_that_share_a_cache_are_one_micro_batch() -> None:
    with loaded_llama(llama_config(n_slots=2, kv="unified", n_ctx=128, n_batch=128)) as engine:
        feed(engine, 0, PROMPTS[0][:40])
        assert n_micro_batches(engine, row(0, 40), Span(1, 1, 0, PROMPTS[1][:40])) == 1
