"""What the reference engine refuses, and what goes wrong on demand."""

import threading
import time

import numpy as np
import pytest

from runnerd.core.batch import (
    Batch,
    BatchKind,
    Edit,
    KVRemove,
    KVShift,
    SampleFault,
    SamplerClose,
    SamplerOpen,
    Sampling,
    Span,
)
from runnerd.engine.reference import ReferenceOptions, parse_options
from runnerd.errors import EngineBroken, NoKVSlot
from tests.engine.reference_builders import (
    feed_tokens,
    open_greedy,
    reference,
    special,
    token_batch,
)

ONE_PASS = special("<image:4:red>")
CAUSAL = special("<image:4:causal:red>")
HI = (104, 105)


def image(
    slot_id: int = 0, pos: int = 0, start: int = 0, stop: int = 4, *, causal: bool = False
) -> Span:
    prompt = CAUSAL if causal else ONE_PASS
    media_id = prompt.groups[0].media_id
    return Span(slot_id, slot_id, pos, prompt.inputs[start:stop], False, media_id, start)


def media(*spans: Span) -> Batch:
    return Batch(BatchKind.MEDIA, spans)


def non_causal(*spans: Span) -> Batch:
    return Batch(BatchKind.MEDIA_NON_CAUSAL, spans)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (token_batch(), "0 rows"),
        (token_batch(Span(0, 0, 0, ())), "0 rows"),
        (token_batch(Span(0, 0, 0, HI), Span(1, 1, 0, ())), "without rows"),
        (token_batch(Span(0, 0, 0, HI * 9)), "18 rows, n_batch is 16"),
        (token_batch(Span(0, 2, 0, HI)), "slot 2 of 2"),
        (token_batch(Span(0, -1, 0, HI)), "slot -1 of 2"),
        (token_batch(Span(0, 0, 1, HI)), "slot 0: row at 1, next is 0"),
        (token_batch(Span(0, 0, 0, HI), Span(0, 0, 1, HI)), "row at 1, next is 2"),
        (token_batch(Span(0, 0, 0, (260,))), "token 260 of 260"),
        (token_batch(Span(0, 0, 0, (-5,))), "token -5"),
        (token_batch(Span(7, 0, 0, HI, wants_logits=True)), "sampler 7 is not open"),
        (media(image()), "in a batch"),
        (non_causal(image(causal=True)), "in a batch"),
        (non_causal(image(stop=3)), "rows that go together"),
        (non_causal(image(start=1)), "rows that go together"),
        (non_causal(image(pos=1)), "row after 1, next is 0"),
        (non_causal(image(), image(pos=4)), "one image each"),
        (non_causal(image(0), image(1), image(2)), "12 rows, n_ubatch is 8"),
        (media(image(causal=True, start=1)), "row after 1, next is 0"),
        (media(Span(0, 0, 0, HI)), "are not its rows"),
        (media(Span(0, 0, 0, CAUSAL.inputs, False, CAUSAL.groups[0].media_id, 1)), "not its rows"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_a_bug(batch: Batch, message: str) -> None:
    with (
        reference(n_slots=2, n_ctx=32, n_batch=16, n_ubatch=8) as engine,
        pytest.raises(AssertionError, match=message),
    ):
        engine.decode(batch)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([KVRemove(4, 0)], "slot 4 of 4"),
        ([KVRemove(0, -1)], r"\[-1, None\) is no range"),
        ([KVRemove(0, 3, 2)], r"\[3, 2\) is no range"),
        ([KVShift(0, 2, None, -1)], "a shift by -1 moves"),
        ([KVShift(0, 0, 2, 7)], "a shift by 7 moves"),
        ([KVShift(0, 0, None, -1)], "a shift by -1 moves"),
        ([KVShift(0, 4, None, 300)], "a shift by 300 moves"),
        ([SamplerOpen(0, Sampling())], "sampler 0 is open"),
        ([SamplerClose(5)], "sampler 5 is not open"),
    ],
)
def test_an_edit_that_makes_no_sense_is_a_bug(edits: list[Edit], message: str) -> None:
    with reference() as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, b"hello", 0)
        with pytest.raises(AssertionError, match=message):
            engine.apply(edits)


def test_a_shift_where_the_cache_cannot_is_a_bug() -> None:
    with (
        reference(ReferenceOptions(shift=False)) as engine,
        pytest.raises(AssertionError, match="cannot shift"),
    ):
        engine.apply([KVShift(0, 0, None, 1)])


def test_a_slot_holds_no_more_than_n_ctx() -> None:
    with reference(n_slots=2, n_ctx=8) as engine:
        engine.decode(token_batch(Span(0, 0, 0, (65,) * 8)))
        with pytest.raises(AssertionError, match="slot 0: 9 inputs up to position 8, n_ctx is 8"):
            engine.decode(token_batch(Span(0, 0, 8, (65,))))


def test_a_closed_engine_decodes_no_more_and_may_be_closed_again() -> None:
    with reference() as engine:
        engine.close()
        engine.close()
        with pytest.raises(AssertionError, match="closed"):
            engine.decode(token_batch(Span(0, 0, 0, HI)))


def test_a_slot_may_have_two_spans_in_a_batch() -> None:
    with reference() as engine:
        open_greedy(engine, 0, 1)
        expected = feed_tokens(engine, b"hello", 0)
        two = token_batch(
            Span(1, 1, 0, tuple(b"he")), Span(1, 1, 2, tuple(b"llo"), wants_logits=True)
        )
        engine.decode(two)
        assert engine.last_logits[0].tolist() == expected


def test_a_full_pool_stores_nothing_of_a_batch() -> None:
    with reference(n_slots=3, n_cells=10) as engine:
        open_greedy(engine, 0, 1)
        engine.decode(token_batch(Span(0, 0, 0, tuple(b"hello"))))
        too_much = token_batch(Span(0, 0, 5, (33,), True), Span(1, 1, 0, tuple(b"hello"), True))
        with pytest.raises(NoKVSlot, match="5 of 10 cells in use, no room for 6 more"):
            engine.decode(too_much)
        engine.decode(token_batch(Span(1, 1, 0, tuple(b"hello"), wants_logits=True)))
        engine.apply([KVRemove(1, 0)])
        engine.decode(token_batch(Span(0, 0, 5, (33,), wants_logits=True)))


# --- faults --------------------------------------------------------------------------------


def endings_of(options: str, n_decodes: int) -> list[str]:
    """Decode one row after the other; return how each ended."""
    endings = []
    with reference(parse_options(options)) as engine:
        open_greedy(engine, 0)
        pos = 0
        for _ in range(n_decodes):
            try:
                engine.decode(token_batch(Span(0, 0, pos, (65,), wants_logits=True)))
                pos += 1
                endings.append("ok")
            except (NoKVSlot, EngineBroken) as err:
                endings.append(type(err).__name__)
    return endings


def test_the_option_no_kv_at_fails_one_decode() -> None:
    assert endings_of("no_kv_at=2", 3) == ["ok", "NoKVSlot", "ok"]


def test_the_option_broken_at_breaks_the_engine_for_good() -> None:
    assert endings_of("broken_at=2", 3) == ["ok"] + ["EngineBroken"] * 2


def test_no_kv_slot_fails_the_next_decodes_and_stores_nothing() -> None:
    with reference() as engine:
        open_greedy(engine, 0, 1)
        expected = feed_tokens(engine, b"hi", 0, slot_id=1)
        engine.faults.no_kv_slot(2)
        for _ in range(2):
            with pytest.raises(NoKVSlot):
                feed_tokens(engine, b"hi", 0)
        assert feed_tokens(engine, b"hi", 0) == expected


def test_broken_at_counts_decodes_from_the_load_on() -> None:
    with reference() as engine:
        open_greedy(engine, 0)
        engine.faults.broken_at(2)
        feed_tokens(engine, b"hi", 0)
        with pytest.raises(EngineBroken, match="decode 2"):
            feed_tokens(engine, b"hi", 2)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
@pytest.mark.parametrize("by_option", [True, False])
def test_nan_logits_are_the_fault_of_one_sequence(sampling: Sampling, by_option: bool) -> None:
    with reference(ReferenceOptions(nan_seq=1 if by_option else -1)) as engine:
        if not by_option:
            engine.faults.nan_for(1)
        engine.apply([SamplerOpen(seq_id, sampling) for seq_id in range(3)])
        spans = [Span(seq_id, seq_id, 0, HI, wants_logits=True) for seq_id in range(3)]
        first, second, third = engine.decode(token_batch(*spans)).sampled
        assert isinstance(second, SampleFault)
        assert isinstance(first, int)
        assert first == third
        assert np.isnan(engine.last_logits).all(axis=1).tolist() == [False, True, False]
        assert not np.isnan(engine.last_logits[[0, 2]]).any()


@pytest.mark.parametrize("by_option", [True, False])
@pytest.mark.parametrize("by_close", [True, False])
def test_a_decode_hangs_until_released_or_closed(by_option: bool, by_close: bool) -> None:
    with reference(ReferenceOptions(hang_at=1 if by_option else 0)) as engine:
        if not by_option:
            engine.faults.hang()
        batch = token_batch(Span(0, 0, 0, HI))
        thread = threading.Thread(target=engine.decode, args=(batch,))
        thread.start()
        assert engine.faults.hanging.wait(5)
        assert thread.is_alive()
        (engine.close if by_close else engine.faults.release)()
        thread.join(5)
        assert not thread.is_alive()
        assert not engine.faults.hanging.is_set()


def test_a_slow_engine_takes_its_time_for_each_decode() -> None:
    with reference(ReferenceOptions(step_ms=30)) as engine:
        started_at = time.monotonic()
        engine.decode(token_batch(Span(0, 0, 0, HI)))
        assert time.monotonic() - started_at >= 0.03


def test_a_slow_load_takes_its_time() -> None:
    started_at = time.monotonic()
    with reference(ReferenceOptions(load_ms=40)):
        assert time.monotonic() - started_at >= 0.04
