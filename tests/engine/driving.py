"""Drive an engine by hand: what the batcher and the runner do, with every choice in the open."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from runnerd.core.batch import (
    Adapters,
    Batch,
    BatchKind,
    Edit,
    KVRemove,
    Sampled,
    SamplerClose,
    SamplerOpen,
    Sampling,
    Span,
    Step,
)
from runnerd.core.prompt import TextPart
from runnerd.engine.base import Engine, run_step

GREEDY = Sampling()
N_ROWS = 32  # per step, so that every engine that is tested takes them
# A language model is sure how these go on. It has to be: how many rows share a pass changes the
# last bits of llama.cpp's logits, and exact tokens must not hang on them.
PROMPTS = (
    "10, 9, 8, 7, 6,",
    "2, 4, 6, 8, 10, 12,",
    "the cat, the cat, the cat, the cat,",
    "I, II, III, IV, V,",
)


class MakeEngine(Protocol):
    """Makes an engine for a `with` block, as exact as it can be set up."""

    def __call__(
        self, *, n_slots: int = 4, n_ctx: int = 256, n_batch: int = 128
    ) -> AbstractContextManager[Engine]: ...


@dataclass(slots=True)
class Lane:
    """A sequence on a slot, fed `n_rows` inputs per step from step `first_step` on.

    The first `n_cached` inputs are taken to be in the slot already; the rest is forgotten.
    """

    slot_id: int
    prompt: Sequence[int]
    sampling: Sampling = GREEDY
    n_rows: int = N_ROWS
    first_step: int = 0
    n_cached: int = 0
    seq_id: int = 0
    generated: list[int] = field(default_factory=list)

    def span(self) -> Span:
        """Return the next rows; the last one is sampled once nothing is left to feed."""
        inputs = (*self.prompt, *self.generated)
        stop = min(self.n_cached + self.n_rows, len(inputs))
        rows = tuple(inputs[self.n_cached : stop])
        wants_logits = stop == len(inputs)
        return Span(self.seq_id, self.slot_id, self.n_cached, rows, wants_logits)


def tokens(engine: Engine, text: str) -> tuple[int, ...]:
    """Return the inputs of a plain text, BOS included."""
    return engine.expand([TextPart(text)]).inputs


def apply(engine: Engine, *edits: Edit) -> None:
    """Run a step that only edits."""
    run_step(engine, Step(1, edits, ()))


def run_spans(
    engine: Engine, spans: Sequence[Span], adapters: Adapters = ()
) -> tuple[Sampled, ...]:
    """Run a step of one token batch."""
    batch = Batch(BatchKind.TOKENS, tuple(spans))
    result = run_step(engine, Step(1, (), (batch,), adapters))
    assert result.n_batches == 1, "the KV cache was full"
    return result.sampled


def skip_unless_rewinding(engine: Engine) -> None:
    """Skip a test that forgets the end of a slot, where that takes more than forgetting it."""
    if engine.limits.needs_checkpoints:
        pytest.skip("the engine goes back in a slot by checkpoints only")


def filled(engine: Engine, slot_id: int, inputs: Sequence[int], n_cached: int = 0) -> int:
    """Store inputs in a slot that holds the first `n_cached` of them; return how many it holds."""
    if n_cached == 0:
        apply(engine, KVRemove(slot_id, 0))
    for start in range(n_cached, len(inputs), N_ROWS):
        run_spans(engine, [Span(0, slot_id, start, tuple(inputs[start : start + N_ROWS]))])
    return len(inputs)


def generate(
    engine: Engine, lanes: Sequence[Lane], n_tokens: int, adapters: Adapters = ()
) -> list[list[int]]:
    """Generate with all lanes in the same passes, in the order given; return their tokens."""
    for seq_id, lane in enumerate(lanes):
        lane.seq_id = seq_id
        opened = SamplerOpen(seq_id, lane.sampling, tuple(lane.prompt))
        apply(engine, KVRemove(lane.slot_id, lane.n_cached), opened)
    try:
        n_steps = 0
        while any(len(lane.generated) < n_tokens for lane in lanes):
            due = [
                lane
                for lane in lanes
                if lane.first_step <= n_steps and len(lane.generated) < n_tokens
            ]
            _advance(engine, due, adapters)
            n_steps += 1
    finally:  # a test that fails here must not fail the next one
        apply(engine, *(SamplerClose(lane.seq_id) for lane in lanes))
    return [lane.generated for lane in lanes]


def _advance(engine: Engine, due: Sequence[Lane], adapters: Adapters) -> None:
    spans = [lane.span() for lane in due]
    sampled = iter(run_spans(engine, spans, adapters) if spans else ())
    for lane, span in zip(due, spans, strict=True):
        lane.n_cached += len(span.inputs)
        if span.wants_logits:
            token = next(sampled)
            assert isinstance(token, int), token
            lane.generated.append(token)


def generate_alone(
    engine: Engine,
    prompt: Sequence[int],
    n_tokens: int,
    sampling: Sampling = GREEDY,
    slot_id: int = 0,
    adapters: Adapters = (),
) -> list[int]:
    """Generate with nothing else in the pass, from an empty slot."""
    return generate(engine, [Lane(slot_id, prompt, sampling)], n_tokens, adapters)[0]


def sample_once(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, history: Sequence[int]
) -> Sampled:
    """Evaluate a prompt on slot 0 and sample once, penalties looking back on `history`."""
    apply(engine, KVRemove(0, 0), SamplerOpen(0, sampling, tuple(history)))
    try:
        (sampled,) = run_spans(engine, [Span(0, 0, 0, tuple(prompt), wants_logits=True)])
    finally:
        apply(engine, SamplerClose(0))
    return sampled


def generate_to_end(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, n_most: int
) -> tuple[bytes, Sampled]:
    """Generate until an end token or a fault; return the bytes and that."""
    said = b""
    inputs, n_cached = tuple(prompt), 0
    apply(engine, KVRemove(0, 0), SamplerOpen(0, sampling, inputs))
    try:
        for _ in range(n_most):
            (sampled,) = run_spans(engine, [Span(0, 0, n_cached, inputs, wants_logits=True)])
            if not isinstance(sampled, int) or engine.is_end(sampled):
                return said, sampled
            said += engine.token_bytes(sampled)
            n_cached, inputs = n_cached + len(inputs), (sampled,)
    finally:
        apply(engine, SamplerClose(0))
    raise AssertionError(f"no end after {said!r}")
