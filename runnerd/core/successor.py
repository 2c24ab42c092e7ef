"""Running ahead: where everybody generates, the next step is known as soon as tokens are picked.

An engine may begin it before the batcher has heard of them. So nothing of it may depend on what
the batcher makes of the step before: nobody ends there, by its own token, joins, or moves.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several

from runnerd.core.batch import Batch, BatchKind, Sampled, SampleFault, Span, Step
from runnerd.core.emission import n_generated_limit
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence


def successor(step: Step, sampled: Several[Sampled], is_end: Callable[[int], bool]) -> Step | None:
    """Return the step of the tokens that a step has given; None if one of them is the last."""
    spans: list[Span] = []
    for span, picked in zip(step.batches[0].spans, sampled, strict=True):
        if isinstance(picked, SampleFault):
            return None
        token = picked if isinstance(picked, int) else picked.token
        if is_end(token):
            return None
        spans.append(Span(span.seq_id, span.slot_id, span.pos + 1, (token,), wants_logits=True))
    batches = (Batch(BatchKind.TOKENS, tuple(spans)),)
    return Step(step.number + 1, (), batches, step.adapters)


def may_have_successor(
    step: Step, sequences: Mapping[int, Sequence], residency: Residency, n_ctx: int
) -> bool:
    """Whether all that there is to know of the next step is which tokens this one gives.

    `sequences` are all that have not ended, those that wait included. Where there are edits by
    now, they are to be known as well: they wait for a step that is planned.
    """
    if len(step.batches) != 1 or residency.edits:
        return False
    spans = step.batches[0].spans
    if len(spans) != len(sequences) or residency.ledger.n_free < 2 * len(spans):
        return False
    return all(_goes_on(sequences[span.seq_id], n_ctx) for span in spans)


def _goes_on(sequence: Sequence, n_ctx: int) -> bool:
    """Whether a sequence generates, and cannot but go on after its next token, if that is no end.

    It has no stop strings, and is not about to reach its limit, its context's end or a halt.
    """
    if not sequence.is_decoding or sequence.options.stops:
        return False
    if sequence.ending is not None or sequence.paused or sequence.is_doubted:
        return False
    n_generated, max_tokens = sequence.n_generated + 1, sequence.options.max_tokens
    if n_generated >= (n_generated_limit(n_ctx) if max_tokens is None else max_tokens):
        return False
    n_inputs = len(sequence.inputs) + 1
    return n_inputs < n_ctx and not any(halt >= n_inputs - 1 for halt in sequence.halts)
