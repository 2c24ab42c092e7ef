"""To the last bit: the engine against the oracle, and against itself batched otherwise."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.core.batch import Adapter, KVRemove, KVShift, Sampling, Span
from runnerd.engine.base import Pooling
from runnerd.engine.reference import ReferenceOptions
from tests.engine.driving import generate_alone
from tests.engine.oracle import Oracle
from tests.engine.reference_builders import (
    SMALL,
    feed,
    feed_tokens,
    open_greedy,
    reference,
    row,
    special,
    token_batch,
)

ONE_LAYER = ReferenceOptions(layers=1, dim=16, heads=2)
WINDOW = ReferenceOptions(layers=2, dim=16, heads=2, window=5, full_layers=0)
MIXED = ReferenceOptions(layers=3, dim=16, heads=2, window=5, recurrent=True)
RECURRENT = ReferenceOptions(layers=1, dim=16, heads=2, recurrent=True)
PROMPTS = (b"the cat sat", b"on", b"a mat, and there it stayed")


@pytest.mark.parametrize(
    "options",
    [
        ReferenceOptions(layers=0, dim=16),
        ONE_LAYER,
        SMALL,
        WINDOW,
        MIXED,
        RECURRENT,
        ReferenceOptions(seed=9),
    ],
    ids=["no layers", "one layer", "two layers", "window", "mixed", "recurrent", "defaults"],
)
@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "<|im_start|>an image <image:6:red> and more",
        "fewer positions <image:7:3:blue>!",
        "<image:5:causal> row after row <image:4:2:causal:x>.",
        "ends in one <image:3>",
    ],
)
def test_logits_equal_the_oracle(options: ReferenceOptions, text: str) -> None:
    prompt = special(text)
    with reference(options) as engine:
        open_greedy(engine, 0)
        assert feed(engine, prompt) == Oracle(options).feed_prompt(prompt)


@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_a_prompt_with_images_may_be_cut_anywhere_but_in_one_pass_groups(n_rows: int) -> None:
    prompt = special("some <image:6:red> text <image:9:4:causal:x> and <image:8:causal> more")
    with reference() as engine:
        open_greedy(engine, 0, 1)
        assert feed(engine, prompt, 1, n_rows) == feed(engine, prompt, 0)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.permutations(range(4)),
    deals=st.lists(st.tuples(*[st.integers(0, 9)] * len(PROMPTS)), max_size=6),
)
def test_batched_equals_alone_however_the_rows_are_dealt(
    slots: list[int], deals: list[tuple[int, ...]]
) -> None:
    with reference() as engine:
        open_greedy(engine, 0, 1, 2)
        alone = [feed_tokens(engine, prompt, 0, slot_id) for slot_id, prompt in enumerate(PROMPTS)]
        engine.apply([KVRemove(slot_id, 0) for slot_id in range(3)])
        n_past = [0, 0, 0]
        batched: list[list[float]] = [[], [], []]
        for n_dealt, deal in enumerate([*deals, (30, 30, 30)]):
            spans = []
            for seq_id in sorted(range(3), key=lambda seq_id: (seq_id + n_dealt) % 3):
                left = PROMPTS[seq_id][n_past[seq_id] :]
                rows = tuple(left[: deal[seq_id]])
                if rows:
                    wants_logits = len(rows) == len(left)
                    pos = n_past[seq_id]
                    spans.append(Span(seq_id, slots[seq_id], pos, rows, wants_logits))
                    n_past[seq_id] += len(rows)
            if spans:
                engine.decode(token_batch(*spans))
            wanted = [span.seq_id for span in spans if span.wants_logits]
            for output, seq_id in enumerate(wanted):
                batched[seq_id] = row(engine, output)
        assert n_past == [len(prompt) for prompt in PROMPTS]
        assert batched == alone


def test_cached_equals_recomputed() -> None:
    with reference() as engine:
        open_greedy(engine, 0, 1)
        feed_tokens(engine, b"the cat sat on a mat", 0)
        engine.apply([KVRemove(0, 8)])
        resumed = feed_tokens(engine, b"ran away", 8)
        assert resumed == feed_tokens(engine, b"the cat ran away", 0, slot_id=1)


def test_positions_removed_within_a_slot_are_no_longer_seen() -> None:
    oracle = Oracle(SMALL)
    for position, token in enumerate(b"0123456789"):
        oracle.feed_token(token, position)
    del oracle.cells[3:6]
    with reference() as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, b"0123456789", 0)
        engine.apply([KVRemove(0, 3, 6)])
        assert feed_tokens(engine, b"a", 10) == oracle.feed_token(ord("a"), 10)


def test_a_shift_turns_the_keys_and_keeps_the_rest_as_it_was_computed() -> None:
    oracle = Oracle(SMALL)
    for position, token in enumerate(b"0123456789"):
        oracle.feed_token(token, position)
    del oracle.cells[2:6]
    for cell in oracle.cells[2:]:
        cell.position -= 4
    with reference() as engine:
        open_greedy(engine, 0)
        feed_tokens(engine, b"0123456789", 0)
        engine.apply([KVRemove(0, 2, 6), KVShift(0, 6, None, -4)])
        assert feed_tokens(engine, b"a", 6) == oracle.feed_token(ord("a"), 6)


def test_a_shifted_cache_of_one_layer_equals_a_new_one() -> None:
    with reference(ONE_LAYER) as engine:
        open_greedy(engine, 0, 1)
        feed_tokens(engine, b"0123456789", 0)
        engine.apply([KVRemove(0, 2, 6), KVShift(0, 6, None, -4)])
        assert feed_tokens(engine, b"a", 6) == feed_tokens(engine, b"016789a", 0, slot_id=1)


def test_a_shift_there_and_back_leaves_no_trace() -> None:
    with reference() as engine:
        open_greedy(engine, 0, 1)
        for slot_id in (0, 1):
            feed_tokens(engine, b"0123456789", 0, slot_id)
        engine.apply([KVShift(1, 4, None, 100), KVShift(1, 104, None, -100)])
        assert feed_tokens(engine, b"a", 10, 1) == feed_tokens(engine, b"a", 10, 0)


@pytest.mark.parametrize(("window", "is_seen"), [(0, True), (6, True), (5, False), (1, False)])
def test_a_row_sees_what_is_less_than_the_window_behind_it(window: int, is_seen: bool) -> None:
    options = ReferenceOptions(layers=1, window=window, full_layers=0)
    with reference(options) as engine:
        open_greedy(engine, 0, 1)
        first, second = (
            feed_tokens(engine, text, 0, slot_id)
            for slot_id, text in enumerate((b"Abcdef", b"Bbcdef"))
        )
        assert (first != second) == is_seen


def test_the_rows_of_a_one_pass_group_see_the_rows_after_them() -> None:
    with reference(n_slots=2) as engine:
        open_greedy(engine, 0, 1)
        seen, unseen = special("<image:4:red>."), special("<image:4:causal:red>.")
        assert feed(engine, seen, 0) != feed(engine, unseen, 1)


@pytest.mark.parametrize("layers", [0, 2])
def test_greedy_text_is_varied_and_mostly_letters(layers: int) -> None:
    with reference(ReferenceOptions(layers=layers)) as engine:
        generated = generate_alone(engine, b"Hello", 200)
    assert len(set(generated)) >= 10
    assert sum(chr(token) in string.ascii_letters + " " for token in generated) >= 150


def test_without_layers_a_generation_never_ends_by_itself() -> None:
    wild = Sampling(temperature=1e6, presence_penalty=1e9, penalty_last_n=256)
    with reference(ReferenceOptions(layers=0), n_ctx=1024) as engine:
        generated = generate_alone(engine, b"Hello", 1000, wild)
        assert not any(map(engine.is_end, generated))


@pytest.mark.parametrize(("end_bias", "ends"), [(20, True), (-100, False)])
def test_the_end_bias_makes_ends_likely_or_not(end_bias: int, ends: bool) -> None:
    with reference(ReferenceOptions(end_bias=end_bias)) as engine:
        assert any(map(engine.is_end, generate_alone(engine, b"Hello", 200))) == ends


# --- adapters and embeddings ---------------------------------------------------------------


@pytest.mark.parametrize("options", [ReferenceOptions(layers=0, dim=16), SMALL, MIXED])
def test_logits_with_adapters_equal_the_oracle(options: ReferenceOptions) -> None:
    adapters = (Adapter("one", 0.5), Adapter("two", -2.0))
    prompt = special("some text <image:3:red>.")
    with reference(options, adapters=("two", "one")) as engine:
        open_greedy(engine, 0, 1)
        plain = feed(engine, prompt, 1)
        engine.use_adapters(adapters)
        adapted = feed(engine, prompt)
    assert adapted == Oracle(options, adapters).feed_prompt(prompt)
    assert adapted != plain


def test_what_was_stored_with_an_adapter_is_not_what_is_stored_without() -> None:
    with reference(adapters=("one",)) as engine:
        open_greedy(engine, 0, 1)
        feed_tokens(engine, b"the cat", 0)
        engine.use_adapters((Adapter("one"),))
        feed_tokens(engine, b"the cat", 0, slot_id=1)
        engine.use_adapters(())
        assert feed_tokens(engine, b"!", 7) != feed_tokens(engine, b"!", 7, slot_id=1)


def test_an_adapter_that_is_not_loaded_is_a_bug() -> None:
    with reference(adapters=("one",)) as engine, pytest.raises(AssertionError, match="'two'"):
        engine.use_adapters((Adapter("one"), Adapter("two")))


@pytest.mark.parametrize("options", [ReferenceOptions(layers=0, dim=16), SMALL, MIXED])
@pytest.mark.parametrize("pooling", ["model", "mean", "last"])
def test_embeddings_together_equal_those_alone_to_the_last_bit(
    options: ReferenceOptions, pooling: Pooling
) -> None:
    inputs = [tuple(text) for text in PROMPTS]
    with reference(options, adapters=("one",)) as engine:
        together = engine.embed(inputs, pooling)
        engine.use_adapters((Adapter("one"),))
        alone = [engine.embed([tokens], pooling)[0].tolist() for tokens in inputs]
    assert together.tolist() == alone


def test_the_longest_input_of_an_embedding_is_that_of_the_configuration() -> None:
    with reference(n_embed=9) as engine:
        assert engine.model.n_embed == 9
        engine.embed([(65,) * 9], "mean")
        with pytest.raises(AssertionError, match="10 tokens, n_embed is 9"):
            engine.embed([(65,) * 4, (65,) * 6], "mean")
    with reference(n_ubatch=32) as engine:
        assert engine.model.n_embed == 32
