"""A pass over rows that generate and rows of prompts, which llama.cpp is given apart."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import KVRemove, Span
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.library import lib
from runnerd.errors import DecodeAborted, NoKVSlot
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

PROMPTS = [
    tuple(int(token) for token in np.random.default_rng(seed).integers(100, 40000, 40))
    for seed in range(4)
]
CLOSE = 1e-3


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    with loaded_llama(llama_config(n_slots=4, n_ctx=128, n_batch=128, n_ubatch=32)) as engine:
        yield engine


@dataclass
class Calls:
    """The rows of each call of llama_decode, and the code that the next one of singles returns."""

    n_rows: list[int]
    code_of_singles: int = 0


def counting(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen, decode = Calls([]), lib.llama_decode

    def counted(context: int, batch: object) -> int:
        n_rows: int = batch.n_tokens  # type: ignore[attr-defined]  # a llama_batch
        seen.n_rows.append(n_rows)
        if n_rows <= 2 and seen.code_of_singles:
            given, seen.code_of_singles = seen.code_of_singles, 0
            return given
        code: int = decode(context, batch)
        return code

    monkeypatch.setattr(lib, "llama_decode", counted)
    return seen


@pytest.fixture
def calls(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record calls from here on; the slots 0 and 2 have a prompt by now, the others nothing."""
    apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(4)))
    for slot_id in (0, 2):
        feed(engine, slot_id, PROMPTS[slot_id])
    return counting(monkeypatch)


def mixed() -> tuple[Span, ...]:
    """Slots 0 and 2 generate; 1 ends its prompt, 3 does not."""
    return (
        Span(0, 0, 40, (11,), wants_logits=True),
        Span(1, 1, 0, PROMPTS[1], wants_logits=True),
        Span(2, 2, 40, (12,), wants_logits=True),
        Span(3, 3, 0, PROMPTS[3]),
    )


def test_rows_come_in_order_and_are_those_of_each_alone(engine: LlamaEngine, calls: Calls) -> None:
    spans = mixed()
    rows = context_of(engine).decode(spans)
    assert calls.n_rows == [80, 2]
    apply(engine, KVRemove(0, 40), KVRemove(1, 0), KVRemove(2, 40))
    alone = [context_of(engine).decode([span])[0].copy() for span in spans[:3]]
    assert np.allclose(rows, alone, atol=CLOSE)


def test_generating_rows_beside_a_prompt_that_goes_on_are_those_of_each_alone(
    engine: LlamaEngine, calls: Calls
) -> None:
    first, _, third, prompt = mixed()
    rows = context_of(engine).decode([first, third, prompt]).copy()
    assert calls.n_rows == [40, 2]
    apply(engine, KVRemove(0, 40), KVRemove(2, 40))
    alone = [context_of(engine).decode([span])[0].copy() for span in (first, third)]
    assert np.allclose(rows, alone, atol=CLOSE)


@pytest.mark.parametrize("chosen", [slice(0, 4, 2), slice(1, 4, 2)], ids=["generate", "prompts"])
def test_rows_of_one_kind_are_one_call(engine: LlamaEngine, calls: Calls, chosen: slice) -> None:
    context_of(engine).decode(mixed()[chosen])
    assert len(calls.n_rows) == 1


def test_slots_that_share_a_cache_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama_config(n_slots=2, n_ctx=128, n_batch=128, n_ubatch=32, kv="unified")
    with loaded_llama(config) as engine:
        feed(engine, 0, PROMPTS[0])
        calls = counting(monkeypatch)
        context_of(engine).decode([Span(0, 0, 40, (11,), True), Span(1, 1, 0, PROMPTS[1])])
        assert calls.n_rows == [41]


def test_a_stop_behind_the_prompts_keeps_them(engine: LlamaEngine, calls: Calls) -> None:
    calls.code_of_singles = 2  # aborted
    with pytest.raises(DecodeAborted) as caught:
        context_of(engine).decode(mixed())
    assert caught.value.n_stored == (0, 40, 0, 40)
    rows = context_of(engine).decode(mixed()[0:3:2])
    assert np.isfinite(rows).all()


def test_no_room_behind_the_prompts_keeps_them(engine: LlamaEngine, calls: Calls) -> None:
    calls.code_of_singles = 1  # no room
    with pytest.raises(DecodeAborted) as caught:
        context_of(engine).decode(mixed())
    assert caught.value.n_stored == (0, 40, 0, 40)
    calls.code_of_singles = 1
    with pytest.raises(NoKVSlot):
        context_of(engine).decode(mixed()[:1])
