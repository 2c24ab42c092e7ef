"""Decodes that are stopped, and what the engine says of them."""

import threading
import time
from collections.abc import Sequence

import pytest

from runnerd.core.batch import Batch, BatchKind, CheckpointSave, KVRemove, Span
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions
from runnerd.errors import DecodeAborted
from tests.engine.reference_builders import (
    feed,
    feed_tokens,
    open_greedy,
    reference,
    spans_of,
    special,
    token_batch,
)

TEXT = tuple(b"the cat sat on a mat, and there it stayed")
WINDOW = ReferenceOptions(dim=16, heads=2, window=8)
RECURRENT = ReferenceOptions(layers=2, dim=16, heads=2, recurrent=True)


def stored(engine: ReferenceEngine, batch: Batch, n_chunks: int) -> Sequence[int | None]:
    """Stop a decode after so many chunks; return what it says is stored."""
    engine.faults.abort_after(n_chunks)
    with pytest.raises(DecodeAborted) as caught:
        engine.decode(batch)
    return caught.value.n_stored


@pytest.mark.parametrize(
    ("n_chunks", "expected"), [(0, (0, 0, 0)), (1, (5, 3, 0)), (2, (5, 10, 1)), (3, (5, 10, 9))]
)
def test_what_is_stored_is_told_span_by_span(n_chunks: int, expected: tuple[int, ...]) -> None:
    with reference(n_ubatch=8) as engine:
        open_greedy(engine, 0, 1, 2)
        sizes = (5, 10, 10)
        spans = [Span(n, n, 0, TEXT[:size], wants_logits=True) for n, size in enumerate(sizes)]
        assert stored(engine, token_batch(*spans), n_chunks) == expected
        for slot_id, n_rows in enumerate(expected):
            rest = TEXT[n_rows : n_rows + 3]
            resumed = feed_tokens(engine, rest, n_rows, slot_id)
            engine.apply([KVRemove(slot_id, 0)])
            assert resumed == feed_tokens(engine, TEXT[: n_rows + 3], 0, slot_id)


def test_a_decode_with_fewer_chunks_runs_to_its_end() -> None:
    with reference(n_ubatch=8) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:16], 0)
        expected = feed_tokens(engine, TEXT[16:], 16)
        engine.apply([KVRemove(0, 0)])
        engine.faults.abort_after(2)
        feed_tokens(engine, TEXT[:16], 0)
        assert feed_tokens(engine, TEXT[16:], 16) == expected


def test_an_image_read_row_after_row_is_stored_in_part() -> None:
    prompt = special("<image:20:7:causal:red>.")
    with reference(n_ubatch=8) as engine:
        open_greedy(engine, 0, 1)
        expected = feed(engine, prompt, slot_id=1)
        image, dot = spans_of(prompt)
        assert stored(engine, image, 2) == (16,)
        (span,) = image.spans
        rest = Span(0, 0, 0, span.inputs[16:], False, span.media_id, 16)
        engine.decode(Batch(BatchKind.MEDIA, (rest,)))
        engine.decode(dot)
        assert engine.last_logits[0].tolist() == expected


def test_a_recurrent_state_is_lost_where_the_stop_came_and_only_there() -> None:
    with reference(RECURRENT, n_ubatch=8) as engine:
        open_greedy(engine, 0, 1, 2)
        feed_tokens(engine, TEXT[:4], 0, slot_id=1)
        spans = [Span(0, 0, 0, TEXT[:8]), Span(1, 1, 4, TEXT[4:10]), Span(2, 2, 0, TEXT[:10])]
        assert stored(engine, token_batch(*spans), 1) == (8, None, None)
        expected = feed_tokens(engine, TEXT[:10], 0, slot_id=1)
        assert feed_tokens(engine, TEXT[8:10], 8, slot_id=0) == expected


def test_a_window_has_moved_on_for_rows_that_are_not_stored() -> None:
    with reference(WINDOW, n_ubatch=8) as engine:
        engine.decode(token_batch(Span(0, 0, 0, TEXT[:16])))
        assert stored(engine, token_batch(Span(0, 0, 16, TEXT[16:28])), 1) == (8,)
        assert engine.oldest()[0] == 20
        assert engine.oldest()[0] > 24 - 8


def test_an_abort_leaves_checkpoints_and_samplers_alone() -> None:
    with reference(WINDOW, n_ubatch=8) as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, TEXT[:8], 0)
        engine.apply([CheckpointSave(1, 0)])
        n_bytes = engine.checkpoint_bytes(1)
        stored(engine, token_batch(Span(0, 0, 8, TEXT[8:20], wants_logits=True)), 0)
        assert engine.checkpoint_bytes(1) == n_bytes
        engine.apply([KVRemove(0, 0)])
        feed_tokens(engine, TEXT, 0)


@pytest.mark.parametrize("n_rows", [1, 64])
def test_a_slow_decode_is_stopped_at_once_from_another_thread(n_rows: int) -> None:
    with reference(ReferenceOptions(layers=0, step_ms=60_000), n_ubatch=8) as engine:
        stops: list[float] = []
        started = threading.Event()

        def decode() -> None:
            started.set()
            with pytest.raises(DecodeAborted):
                engine.decode(token_batch(Span(0, 0, 0, (65,) * n_rows)))
            stops.append(time.monotonic())

        thread = threading.Thread(target=decode)
        thread.start()
        assert started.wait(5)
        asked_at = time.monotonic()
        engine.set_abort(True)
        thread.join(5)
        assert stops[0] - asked_at < 0.5  # far from a minute, however busy the machine


def test_decodes_are_stopped_until_they_may_run_again() -> None:
    with reference() as engine:
        open_greedy(engine, 0)
        engine.set_abort(True)
        for _ in range(2):
            with pytest.raises(DecodeAborted):
                feed_tokens(engine, TEXT, 0)
        engine.set_abort(False)
        feed_tokens(engine, TEXT, 0)
