"""Admission: what is refused, what is cut, what is kept."""

import pytest

from runnerd.core.batch import Sampling
from runnerd.errors import InvalidRequest, PromptTooLong
from tests.helpers import Image, make_limits, make_prompt, make_sequence

LIMITS = make_limits(n_ctx=64, n_batch=32, n_ubatch=16)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt is empty") as caught:
        make_sequence(1, [], limits=LIMITS)
    assert caught.value.details["limit"] == "at least one token"


def test_a_prompt_over_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong) as caught:
        make_sequence(1, range(65), limits=LIMITS)
    assert caught.value.details == {"n_prompt": 65, "n_ctx": 64}


def test_a_prompt_of_exactly_the_context_is_taken_whole() -> None:
    sequence = make_sequence(1, range(64), limits=LIMITS, truncate=True)
    assert (len(sequence.inputs), sequence.n_truncated) == (64, 0)


@pytest.mark.parametrize(
    ("max_tokens", "n_left"),
    [(None, 48), (0, 63), (1, 63), (7, 57), (16, 48), (17, 48), (10_000, 48)],
)
def test_a_cut_leaves_room_for_the_tokens_asked_for_up_to_a_quarter(
    max_tokens: int | None, n_left: int
) -> None:
    for n_prompt in (65, 128, 64 * 40):
        sequence = make_sequence(
            1, range(n_prompt), limits=LIMITS, max_tokens=max_tokens, truncate=True
        )
        assert len(sequence.inputs) == n_left
        assert sequence.n_prompt == n_prompt
        assert sequence.n_truncated == n_prompt - n_left
        assert sequence.inputs[-32:] == list(range(n_prompt - 32, n_prompt))


@pytest.mark.parametrize("n_prompt", [65, 128, 64 * 40])
def test_a_cut_keeps_its_two_ends_verbatim_and_reports_what_is_gone(n_prompt: int) -> None:
    sequence = make_sequence(1, range(n_prompt), limits=LIMITS, n_keep=5, truncate=True)
    assert sequence.inputs[:5] == [*range(5)]
    assert sequence.inputs[5:] == [*range(n_prompt - 43, n_prompt)]
    assert sequence.n_truncated == n_prompt - 48
    with pytest.raises(PromptTooLong) as caught:
        make_sequence(1, range(n_prompt), limits=LIMITS, n_keep=5)
    assert caught.value.details == {"n_prompt": n_prompt, "n_ctx": 64}


@pytest.mark.parametrize(
    ("n_keep", "n_kept"), [(-1, 47), (0, 0), (1, 1), (46, 46), (47, 47), (63, 47), (10**9, 47)]
)
def test_a_cut_keeps_n_keep_inputs_and_at_least_one_more(n_keep: int, n_kept: int) -> None:
    sequence = make_sequence(1, range(100), limits=LIMITS, n_keep=n_keep, truncate=True)
    assert sequence.n_keep == n_kept
    assert sequence.inputs == [*range(n_kept), *range(100 - 48 + n_kept, 100)]


def test_a_cut_through_an_image_drops_all_of_it() -> None:
    prompt = make_prompt(range(10), Image(1, 12), range(50))
    sequence = make_sequence(1, prompt, limits=LIMITS, max_tokens=1, n_keep=5, truncate=True)
    assert sequence.inputs == [*range(5), *range(50)][: 5 + 50]
    assert sequence.n_truncated == 17
    assert sequence.layout.groups == ()


def test_an_image_across_n_keep_is_not_kept() -> None:
    prompt = make_prompt(range(3), Image(1, 12), range(80))
    sequence = make_sequence(1, prompt, limits=LIMITS, max_tokens=1, n_keep=9, truncate=True)
    assert sequence.n_keep == 3
    assert sequence.layout.groups == ()


@pytest.mark.parametrize(
    ("n_rows", "one_pass", "limit"), [(17, True, "16 .*ubatch"), (65, False, "64 .*ctx")]
)
def test_an_image_that_can_never_be_evaluated_is_refused(
    n_rows: int, one_pass: bool, limit: str
) -> None:
    prompt = make_prompt([1], Image(1, n_rows, one_pass=one_pass), [2])
    with pytest.raises(InvalidRequest, match=f"{n_rows} inputs.*{limit}") as caught:
        make_sequence(1, prompt, limits=LIMITS, truncate=True)
    assert caught.value.details["field"] == "prompt"


def test_an_image_read_row_by_row_may_be_larger_than_a_batch() -> None:
    prompt = make_prompt([1], Image(1, 40, one_pass=False))
    assert len(make_sequence(1, prompt, limits=LIMITS).inputs) == 41


@pytest.mark.parametrize(
    ("n_keep", "n_kept"), [(-1, 20), (0, 0), (1, 1), (20, 20), (63, 20), (64, 20), (2**31 - 1, 20)]
)
def test_n_keep_is_at_most_the_prompt(n_keep: int, n_kept: int) -> None:
    assert make_sequence(1, range(20), limits=LIMITS, n_keep=n_keep).n_keep == n_kept


def test_penalties_look_back_on_the_last_tokens_of_the_prompt_and_on_no_image() -> None:
    prompt = make_prompt([1, 2, 3], Image(1, 2), [4])
    sampling = Sampling(repeat_penalty=1.1, penalty_last_n=4)
    sequence = make_sequence(1, prompt, limits=LIMITS, sampling=sampling)
    assert sequence.penalty_history() == (3, 4)


def test_dry_and_penalties_look_back_as_far_as_the_longer_of_them() -> None:
    sampling = Sampling(repeat_penalty=1.1, penalty_last_n=2, dry_multiplier=0.8, dry_last_n=5)
    sequence = make_sequence(1, range(1, 20), limits=LIMITS, sampling=sampling)
    assert sequence.penalty_history() == (15, 16, 17, 18, 19)


def test_without_penalties_there_is_nothing_to_look_back_on() -> None:
    assert make_sequence(1, [1, 2, 3], limits=LIMITS).penalty_history() == ()
