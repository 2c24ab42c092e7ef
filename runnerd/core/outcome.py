"""What a step has left behind: rows in the cache, and samples."""

from collections.abc import Mapping

from runnerd.core.batch import Batch, SampleFault, Span, Step, StepResult
from runnerd.core.emission import Emission, Vocabulary, take_up
from runnerd.core.kv import KVLedger
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from runnerd.errors import EngineFailed

Sequences = Mapping[int, Sequence]


def store(step: Step, result: StepResult, sequences: Sequences, residency: Residency) -> int:
    """Count what a step has stored; return how many rows of it were of prompts."""
    n_prefilled = 0
    for span in _spans_run(step, result):
        n_prefilled += _store(sequences[span.seq_id], len(span.inputs), step, residency)
    if result.n_stored is None:
        return n_prefilled
    lost: dict[int, Sequence] = {}
    aborted = step.batches[result.n_batches].spans
    for span, n_rows in zip(aborted, result.n_stored, strict=True):
        sequence = sequences[span.seq_id]
        if n_rows is None:
            lost[span.seq_id] = sequence
        elif n_rows > 0:
            n_prefilled += _store(sequence, n_rows, step, residency)
    for sequence in lost.values():
        residency.lose(sequence)
    return n_prefilled


def _store(sequence: Sequence, n_rows: int, step: Step, residency: Residency) -> int:
    n_prefilled = 0 if sequence.is_decoding else n_rows
    residency.store(sequence, n_rows)
    sequence.last_step = step.number
    return n_prefilled


def take_samples(
    step: Step,
    result: StepResult,
    sequences: Sequences,
    vocabulary: Vocabulary,
    n_ctx: int,
    now: float,
) -> list[Emission]:
    """Take up what was sampled."""
    emissions: list[Emission] = []
    seq_ids, samples = _sampled(step, result), result.sampled
    seconds = result.sampling_s or (0.0,) * len(samples)
    for seq_id, sampled, elapsed_s in zip(seq_ids, samples, seconds, strict=True):
        sequence = sequences[seq_id]
        sequence.timings.sampling_s += elapsed_s
        emissions.append(take_up(sequence, sampled, vocabulary, n_ctx, now))
    return emissions


def find_spoiled(step: Step, result: StepResult, sequences: Sequences) -> list[Sequence]:
    """Return the sequences whose slots hold what is no number."""
    if SampleFault not in map(type, result.sampled):  # as in almost every step
        return []
    return [
        sequences[seq_id]
        for seq_id, sampled in zip(_sampled(step, result), result.sampled, strict=True)
        if isinstance(sampled, SampleFault) and sampled.spoils_slot
    ]


def no_room(batch: Batch, ledger: KVLedger) -> EngineFailed:
    """Return the error of a batch that finds no room, whatever gives way for it."""
    return EngineFailed(
        f"no room in the KV cache for {batch.n_rows} rows,"
        f" {ledger.n_used} of {ledger.n_cells} cells in use",
        n_rows=batch.n_rows,
        n_cells_used=ledger.n_used,
        n_cells=ledger.n_cells,
    )


def _sampled(step: Step, result: StepResult) -> list[int]:
    """Return whose rows were sampled, in order."""
    return [span.seq_id for span in _spans_run(step, result) if span.wants_logits]


def _spans_run(step: Step, result: StepResult) -> list[Span]:
    return [span for batch in step.batches[: result.n_batches] for span in batch.spans]
