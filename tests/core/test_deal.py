"""Dealing prompt rows, and packing them into batches."""

from runnerd.core.batch import BatchKind, Limits
from runnerd.core.deal import MIN_TURN, Draft, deal, pack
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from runnerd.core.shelf import Shelf
from tests.helpers import Image, make_limits, make_prompt, make_sequence

LIMITS = make_limits(n_slots=8, n_ctx=512, n_batch=512)


def make_ring(*prompts: Prompt | int, limits: Limits = LIMITS) -> list[Sequence]:
    """Return admitted sequences with nothing cached; a number is a prompt of so many tokens."""
    residency = Residency(limits)
    for seq_id, prompt in enumerate(prompts):
        tokens = prompt if isinstance(prompt, Prompt) else [seq_id] * prompt
        lease = residency.pool.acquire()
        assert lease is not None
        residency.admit(make_sequence(seq_id, tokens, limits=limits), lease)
    return residency.running


def dealt(ring: list[Sequence], n_rows: int, n_room: int) -> list[Draft]:
    """Deal rows where no medium has to be encoded."""
    return deal(ring, n_rows, n_room, Shelf())


def shares(drafts: list[Draft]) -> dict[int, int]:
    """Return how many rows each sequence got."""
    return {
        draft.sequence.seq_id: sum(piece.stop - piece.start for piece in draft.pieces)
        for draft in drafts
    }


def kinds(drafts: list[Draft], n_ubatch: int = 512) -> list[tuple[BatchKind, list[int]]]:
    """Return each batch's kind and the rows of its spans."""
    batches = pack([], drafts, n_ubatch)
    return [(batch.kind, [len(span.inputs) for span in batch.spans]) for batch in batches]


def test_rows_are_shared_equally() -> None:
    assert shares(dealt(make_ring(300, 300, 300), 300, 300)) == {0: 100, 1: 100, 2: 100}


def test_what_a_short_prompt_leaves_goes_to_the_head() -> None:
    assert shares(dealt(make_ring(300, 300, 10), 300, 300)) == {0: 190, 1: 100, 2: 10}


def test_turns_are_not_cut_below_the_least_worth_taking() -> None:
    drafts = dealt(make_ring(300, 300, 300), 2 * MIN_TURN + 5, 512)
    assert shares(drafts) == {0: MIN_TURN, 1: MIN_TURN, 2: 5}


def test_a_short_prompt_behind_a_long_one_shares_its_step() -> None:
    drafts = dealt(make_ring(500, 12), 64, 512)
    assert shares(drafts) == {0: 52, 1: 12}


def test_text_before_an_image_shares_its_step_and_text_after_waits() -> None:
    drafts = dealt(make_ring(make_prompt([1, 2], Image(7, 5), [3, 4])), 100, 512)
    assert kinds(drafts) == [(BatchKind.TOKENS, [2]), (BatchKind.MEDIA_NON_CAUSAL, [5])]


def test_an_image_that_does_not_fit_in_what_is_left_waits_whole() -> None:
    drafts = dealt(make_ring(make_prompt([1] * 30, Image(7, 50))), 60, 60)
    assert shares(drafts) == {0: 30}


def test_the_heads_image_may_exceed_the_budget_up_to_the_room() -> None:
    ring = make_ring(make_prompt(Image(7, 50), [1]), 100)
    assert shares(dealt(ring, 16, 60)) == {0: 50}
    assert shares(dealt(ring, 16, 40)) == {1: 16}


def test_an_image_may_exceed_its_turn_to_end_whole() -> None:
    ring = make_ring(make_prompt(Image(7, 90)), 100)
    assert shares(dealt(ring, 100, 100)) == {0: 90, 1: 10}


def test_a_sequence_gives_one_image_to_a_step() -> None:
    drafts = dealt(make_ring(make_prompt(Image(7, 5), Image(8, 5))), 100, 512)
    assert kinds(drafts) == [(BatchKind.MEDIA_NON_CAUSAL, [5])]


def test_images_read_row_by_row_are_split_and_follow_each_other() -> None:
    prompt = make_prompt([1], Image(7, 20, one_pass=False), Image(8, 20, one_pass=False))
    (sequence,) = make_ring(prompt)
    drafts = dealt([sequence], 31, 512)
    batches = pack([], drafts, 512)
    assert [batch.kind for batch in batches] == [BatchKind.TOKENS, BatchKind.MEDIA]
    spans = batches[1].spans
    assert [(s.media_id, s.row0, len(s.inputs), s.pos) for s in spans] == [
        (7, 0, 20, 1),
        (8, 0, 10, 21),
    ]
    sequence.lease.slot.n_past = 31  # type: ignore[union-attr]
    (batch,) = pack([], dealt([sequence], 31, 512), 512)
    (span,) = batch.spans
    assert (span.media_id, span.row0, len(span.inputs), span.pos) == (8, 10, 10, 21)
    assert span.wants_logits


def test_images_of_several_sequences_share_a_batch_up_to_n_ubatch() -> None:
    ring = make_ring(*(make_prompt([1], Image(n, 6), [2]) for n in range(3)))
    assert kinds(dealt(ring, 100, 512), n_ubatch=12) == [
        (BatchKind.TOKENS, [1, 1, 1]),
        (BatchKind.MEDIA_NON_CAUSAL, [6, 6]),
        (BatchKind.MEDIA_NON_CAUSAL, [6]),
    ]


def test_only_the_last_input_of_a_prompt_asks_for_logits() -> None:
    ring = make_ring(100, 20)
    (batch,) = pack([], dealt(ring, 60, 512), 512)
    assert [span.wants_logits for span in batch.spans] == [False, True]
    assert batch.n_outputs == 1


def test_a_step_ends_at_the_next_halt_of_a_sequence() -> None:
    (sequence,) = make_ring(make_prompt([1] * 40, Image(7, 5), [3] * 40))
    sequence.halts = [30, 45, 70]
    assert shares(dealt([sequence], 100, 512)) == {0: 30}
    sequence.lease.slot.n_past = 30  # type: ignore[union-attr]
    assert kinds(dealt([sequence], 100, 512)) == [
        (BatchKind.TOKENS, [10]),
        (BatchKind.MEDIA_NON_CAUSAL, [5]),
    ]
    sequence.lease.slot.n_past = 70  # type: ignore[union-attr]
    assert shares(dealt([sequence], 100, 512)) == {0: 15}


def test_what_a_halt_leaves_goes_to_others() -> None:
    ring = make_ring(100, 100)
    ring[0].halts = [20]
    assert shares(dealt(ring, 100, 512)) == {0: 20, 1: 80}


def test_tiles_are_spans_of_their_own_that_go_on_with_the_rows_of_the_picture() -> None:
    image = Image(7, 6, n_pos=2, one_pass=False, encoded=True, n_tiles=2, has_marks=True)
    (sequence,) = make_ring(make_prompt([1], image))
    shelf = Shelf()
    shelf.put(7, "rows")
    spans = []
    for _ in range(4):
        batches = pack([], deal([sequence], 8, 512, shelf), 512)
        spans += [span for batch in batches for span in batch.spans]
        sequence.slot.n_past += sum(batch.n_rows for batch in batches)
    assert [(s.pos, len(s.inputs), s.row0, s.media) for s in spans] == [
        (0, 2, 0, None),
        (2, 6, 0, "rows"),
        (4, 1, 0, None),
        (5, 6, 6, "rows"),
        (7, 1, 0, None),
    ]


def test_a_step_ends_before_an_image_that_is_not_there() -> None:
    ring = make_ring(make_prompt([1, 2], Image(7, 5, encoded=True), [3]), 100)
    assert shares(dealt(ring, 100, 512)) == {0: 2, 1: 98}


def test_turns_are_not_cut_below_a_tile() -> None:
    drafts = deal(make_ring(300, 300, 300), 100, 512, Shelf(), n_tile=64)
    assert shares(drafts) == {0: 64, 1: 36}
