"""Whose inputs go into the next pass of embeddings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runnerd.embed_queue import (
    INPUTS_PER_PASS,
    READY_BYTES,
    EmbeddingQueue,
    EmbeddingRequest,
    Pass,
)
from runnerd.engine.base import Pooling


def request(*lengths: int, pooling: Pooling = "mean") -> EmbeddingRequest:
    return EmbeddingRequest([(7,) * n for n in lengths], pooling, lambda: None)


def queue_of(*requests: EmbeddingRequest, n_embed: int = 100) -> EmbeddingQueue:
    queue = EmbeddingQueue(n_embed)
    for each in requests:
        queue.add(each)
    return queue


def taken(queue: EmbeddingQueue, n_rows_most: int = 100) -> Pass:
    one = queue.take(n_rows_most)
    assert one is not None
    return one


def test_requests_take_turns_an_input_each() -> None:
    long, short, other = request(*[1] * 9), request(1, 1), request(1, 1, 1)
    assert taken(queue_of(long, short, other), 8).owners == (
        *(long, short, other),
        *(long, short, other),
        *(long, other),
    )


def test_who_does_not_fit_any_more_is_first_in_the_next_pass() -> None:
    small, large = request(3, 3), request(8, 8)
    queue = queue_of(small, large)
    assert taken(queue, 10).owners == (small,)
    assert taken(queue, 10).owners == (large,)
    assert taken(queue, 10).owners == (small,)


def test_an_input_beyond_the_budget_goes_alone() -> None:
    queue = queue_of(request(90), request(1))
    assert taken(queue, 16).n_rows == 90
    assert taken(queue, 16).n_rows == 1


def test_a_pass_has_one_pooling_and_the_others_come_next() -> None:
    mean, last = request(*[1] * 200), request(1, pooling="last")
    queue = queue_of(mean, last)
    assert [taken(queue).pooling for _ in range(3)] == ["mean", "last", "mean"]


def test_a_request_whose_results_nobody_fetches_waits() -> None:
    lazy, eager = request(1, 1, 1), request(1, 1)
    lazy.give(np.zeros((1, READY_BYTES), np.float32))
    queue = queue_of(lazy, eager)
    assert taken(queue).owners == (eager, eager)
    assert queue.take(100) is None


def test_nothing_more_is_taken_of_a_request_that_is_removed() -> None:
    gone, here = request(1, 1), request(1)
    queue = queue_of(gone, here)
    queue.remove(gone)
    queue.remove(gone)
    assert taken(queue).owners == (here,)
    assert queue.take(100) is None


@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(1, 20), min_size=1), st.sampled_from(["mean", "last"]))
    ),
    n_rows_most=st.integers(1, 40),
)
def test_every_input_is_taken_once_and_in_order(
    requests: list[tuple[list[int], Pooling]], n_rows_most: int
) -> None:
    asked = [request(*lengths, pooling=pooling) for lengths, pooling in requests]
    queue = queue_of(*asked, n_embed=20)
    seen: dict[EmbeddingRequest, list[int]] = {each: [] for each in asked}
    while (one := queue.take(n_rows_most)) is not None:
        assert len(one.inputs) <= INPUTS_PER_PASS
        assert one.n_rows <= min(n_rows_most, 20) or len(one.inputs) == 1
        for owner, tokens in zip(one.owners, one.inputs, strict=True):
            assert owner.pooling == one.pooling
            seen[owner].append(len(tokens))
    assert list(seen.values()) == [lengths for lengths, _ in requests]
