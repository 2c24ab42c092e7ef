"""A decode that is stopped: soon, with what it stored known, and nothing left behind."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Batch, BatchKind, KVRemove, KVShift, Span, Step
from runnerd.engine.base import run_step
from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.library import lib
from runnerd.errors import DecodeAborted
from tests.engine.driving import apply
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import Row, context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

TOKENS = tuple(int(token) for token in np.random.default_rng(5).integers(100, 40000, 112))
OTHER = TOKENS[::-1][:30]
N_UBATCH = 16


@pytest.fixture(scope="module", params=["split", "unified"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    kv: Literal["split", "unified"] = request.param
    config = llama_config(kv=kv, n_ubatch=N_UBATCH, n_batch=256)
    with loaded_llama(config) as engine:
        yield engine


@contextmanager
def stopped_at(engine: LlamaEngine, n_nodes: int) -> Iterator[None]:
    """Stop decodes when llama.cpp asks for the n-th time whether to go on."""
    context = context_of(engine)
    n_asked = 0

    def asked(_: int | None) -> bool:
        nonlocal n_asked
        n_asked += 1
        return n_asked >= n_nodes

    callback = lib.ggml_abort_callback(asked)
    lib.llama_set_abort_callback(context._handle, callback, None)
    try:
        yield
    finally:
        context.abort = AbortSwitch(context._handle)


def empty(engine: LlamaEngine) -> None:
    apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(engine.limits.n_slots)))


def stop(engine: LlamaEngine, n_nodes: int, *spans: Span) -> tuple[int | None, ...]:
    apply(engine, *(KVRemove(span.slot_id, span.pos) for span in spans))
    with stopped_at(engine, n_nodes), pytest.raises(DecodeAborted) as caught:
        context_of(engine).decode(spans)
    return caught.value.n_stored


def store(engine: LlamaEngine, spans: tuple[Span, ...], n_stored: tuple[int | None, ...]) -> None:
    """Store what a stopped batch did, without a stop: so it lies in the same cells.

    Where slots share them, the order of the cells decides the last bits of what is computed.
    """
    apply(engine, *(KVRemove(span.slot_id, span.pos) for span in spans))
    cut = zip(spans, n_stored, strict=True)
    kept = [replace(span, inputs=span.inputs[:n]) for span, n in cut if n]
    if kept:
        context_of(engine).decode(kept)


@pytest.mark.parametrize("n_nodes", [1, 1000, 2500])
def test_the_rest_after_a_stop_gives_what_a_fresh_run_gives(
    engine: LlamaEngine, n_nodes: int
) -> None:
    empty(engine)
    fresh = feed(engine, 0, TOKENS)
    (n_stored,) = stop(engine, n_nodes, Span(0, 0, 0, TOKENS))
    assert n_stored is not None
    assert n_stored % N_UBATCH == 0
    assert (n_stored > 0) == (n_nodes > 1)
    assert np.array_equal(feed(engine, 0, TOKENS[n_stored:], n_stored), fresh)


def test_a_prompt_that_shares_half_of_a_stopped_one_gives_what_a_fresh_run_gives(
    engine: LlamaEngine,
) -> None:
    mixed = TOKENS[:40] + OTHER
    empty(engine)
    fresh = feed(engine, 0, mixed)
    (n_stored,) = stop(engine, 2500, Span(0, 0, 0, TOKENS))
    assert n_stored is not None
    assert n_stored >= 40
    apply(engine, KVRemove(0, 40))
    assert np.array_equal(feed(engine, 0, mixed[40:], 40), fresh)


def test_a_stop_leaves_slots_that_are_not_in_the_batch_alone(engine: LlamaEngine) -> None:
    spans = (Span(0, 0, 0, TOKENS),)
    empty(engine)
    feed(engine, 2, TOKENS[:60])
    n_stored = stop(engine, 1000, *spans)
    row = feed(engine, 2, TOKENS[60:], 60)
    empty(engine)
    feed(engine, 2, TOKENS[:60])
    store(engine, spans, n_stored)
    assert np.array_equal(row, feed(engine, 2, TOKENS[60:], 60))


@pytest.mark.parametrize("n_nodes", [1, 1000, 2000])
def test_each_slot_of_a_stopped_batch_goes_on_from_what_it_has(
    engine: LlamaEngine, n_nodes: int
) -> None:
    spans = Span(0, 0, 40, TOKENS[40:]), Span(1, 1, 10, OTHER[10:])

    def begin() -> None:
        empty(engine)
        feed(engine, 0, TOKENS[:40])
        feed(engine, 1, OTHER[:10])

    def go_on(n_stored: tuple[int | None, ...]) -> list[Row]:
        rows = []
        for span, n in zip(spans, n_stored, strict=True):
            assert n is not None
            # At least two rows: a single one is not computed to the last bit alike.
            n_kept = min(n, len(span.inputs) - 2)
            start = span.pos + n_kept
            apply(engine, KVRemove(span.slot_id, start))
            rows.append(feed(engine, span.slot_id, span.inputs[n_kept:], start))
        return rows

    begin()
    n_stored = stop(engine, n_nodes, *spans)
    rows = go_on(n_stored)
    begin()
    store(engine, spans, n_stored)
    assert np.array_equal(rows, go_on(n_stored))


@pytest.mark.parametrize("n_nodes", [1, 400, 900, 1400, 1900])
def test_what_a_stop_was_too_early_for_gives_what_it_gives_undisturbed(
    engine: LlamaEngine, n_nodes: int
) -> None:
    """Slots 0 and 2 generate beside prompts in 1 and 3, which llama.cpp runs one by one."""
    spans = (
        Span(0, 0, 40, TOKENS[40:41], wants_logits=True),
        Span(1, 1, 0, TOKENS[:42], wants_logits=True),
        Span(2, 2, 10, OTHER[10:11], wants_logits=True),
        Span(3, 3, 10, OTHER[10:], wants_logits=True),
    )
    more = [
        Span(slot, slot, n_past, (7,), wants_logits=True) for slot, n_past in ((1, 42), (3, 30))
    ]

    def begin() -> None:
        empty(engine)
        feed(engine, 0, TOKENS[:40])
        for slot_id in (2, 3):
            feed(engine, slot_id, OTHER[:10])

    def decode(*these: Span) -> Row:
        return context_of(engine).decode(these).copy()

    begin()
    undisturbed = decode(*spans), decode(*more)
    begin()
    rest = []
    for span, n in zip(spans, stop(engine, n_nodes, *spans), strict=True):
        n_kept = min(n or 0, len(span.inputs) - 1)
        apply(engine, KVRemove(span.slot_id, span.pos + n_kept))
        rest.append(replace(span, pos=span.pos + n_kept, inputs=span.inputs[n_kept:]))
    rows = decode(*rest), decode(*more)
    for row, expected in zip(rows, undisturbed, strict=True):
        assert np.array_equal(row, expected)


@pytest.mark.parametrize("n_nodes", [1, 30, 59])
def test_a_decode_that_moves_what_was_shifted_is_not_stopped(
    engine: LlamaEngine, n_nodes: int
) -> None:
    def row_after(stopping: AbstractContextManager[None]) -> Row:
        empty(engine)
        feed(engine, 0, TOKENS[:60])
        shift = KVRemove(0, 10, 30), KVShift(0, 30, None, -20)
        prefill = Batch(BatchKind.TOKENS, (Span(1, 1, 0, TOKENS[:50]),))
        with stopping:
            assert not run_step(engine, Step(1, shift, (prefill,))).is_aborted
        return feed(engine, 0, TOKENS[60:90], 40)

    assert np.array_equal(row_after(stopped_at(engine, n_nodes)), row_after(nullcontext()))


def test_a_step_tells_what_is_stored_and_samples_nothing(engine: LlamaEngine) -> None:
    apply(engine, KVRemove(0, 0))
    engine.set_abort(True)
    batch = Batch(BatchKind.TOKENS, (Span(0, 0, 0, TOKENS),))
    result = run_step(engine, Step(1, (), (batch,)))
    engine.set_abort(False)
    assert (result.n_batches, result.sampled, result.n_stored) == (0, (), (0,))
    assert result.is_aborted
    assert not run_step(engine, Step(2, (), (batch,))).is_aborted


def test_a_long_prefill_stops_within_a_fifth_of_a_second() -> None:
    with loaded_llama(llama_config(n_slots=1, n_ctx=2048, n_batch=2048)) as engine:
        prompt = Span(0, 0, 0, tuple(range(100, 2148)))

        def measure() -> float:
            stopped_at = 0.0

            def stop() -> None:
                nonlocal stopped_at
                stopped_at = time.perf_counter()
                engine.set_abort(True)

            engine.set_abort(False)
            apply(engine, KVRemove(0, 0))
            timer = threading.Timer(0.3, stop)
            timer.start()
            with pytest.raises(DecodeAborted):
                context_of(engine).decode([prompt])
            return time.perf_counter() - stopped_at

        assert min(measure() for _ in range(3)) < 0.2
