"""What the daemon says, out of the values that runner and core speak in."""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from runnerd import __version__
from runnerd.core.batch import Logprobs
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.core.timings import TimingSummary
from runnerd.engine.base import Engine
from runnerd.errors import RequestError
from runnerd_protocol import messages as wire

SERVER_NAME = f"runnerd/{__version__}"
ENTRIES_PER_DELTA = 4096  # log-probabilities in one message: less than 256 KiB of it

TokenBytes = Callable[[int], bytes]


def progress(request_id: int, index: int, sequence: Sequence) -> wire.PromptProgress:
    """Return how far a sequence's prompt is."""
    return wire.PromptProgress(
        request_id,
        n_prompt=sequence.n_prompt - sequence.n_truncated,
        n_cached=sequence.n_cached,
        n_processed=sequence.n_processed,
        index=index,
    )


def deltas(
    delta: wire.Delta, logprobs: Iterable[Logprobs], token_bytes: TokenBytes
) -> Iterator[wire.Delta]:
    """Yield a delta with log-probabilities; where those are many, further ones without text."""
    entries: list[wire.TokenLogprobs] = []
    n_entries = 0
    for picked in logprobs:
        n_entries += 1 + len(picked.top)
        if entries and n_entries > ENTRIES_PER_DELTA:
            yield replace(delta, logprobs=entries)
            delta = wire.Delta(delta.request_id, "", 0, index=delta.index)
            entries, n_entries = [], 1 + len(picked.top)
        top = [wire.TopLogprob(token, each, token_bytes(token)) for token, each in picked.top]
        data = token_bytes(picked.token)
        entries.append(wire.TokenLogprobs(picked.token, picked.logprob, data, top))
    yield replace(delta, logprobs=entries) if entries else delta


def choice(
    sequence: Sequence, reason: FinishReason, n_text_bytes: int, times: TimingSummary
) -> wire.Choice:
    """Return how one completion ended."""
    return wire.Choice(
        reason=reason,
        stop_sequence=sequence.detokenizer.stopped_by if reason == "stop_sequence" else None,
        n_cached=sequence.n_cached,
        n_generated=sequence.n_generated,
        n_text_bytes=n_text_bytes,
        n_shifts=sequence.n_shifts,
        n_shifted=sequence.n_shifted,
        n_suspended=sequence.n_suspended,
        seed=sequence.options.sampling.seed,
        timings=wire.Timings(
            queue_ms=round(times.queue_ms, 3),
            ttft_ms=round(times.ttft_ms, 3),
            itl_p50_ms=round(times.itl_p50_ms, 3),
            itl_p95_ms=round(times.itl_p95_ms, 3),
            total_ms=round(times.total_ms, 3),
            prefill_ms=round(times.prefill_ms, 3),
            decode_ms=round(times.decode_ms, 3),
            sampling_ms=round(times.sampling_ms, 3),
        ),
    )


def finished(request_id: int, first: Sequence, choices: list[wire.Choice]) -> wire.Finished:
    """Return the last word on a request: of its only completion, or of several."""
    return wire.Finished(
        request_id=request_id,
        reason=choices[0].reason,
        stop_sequence=choices[0].stop_sequence,
        n_prompt=first.n_prompt,
        n_cached=sum(each.n_cached for each in choices),
        n_generated=sum(each.n_generated for each in choices),
        n_text_bytes=sum(each.n_text_bytes for each in choices),
        n_keep=first.n_keep,
        n_truncated=first.n_truncated,
        n_shifts=sum(each.n_shifts for each in choices),
        n_shifted=sum(each.n_shifted for each in choices),
        seed=choices[0].seed,
        timings=choices[0].timings,
        n_suspended=sum(each.n_suspended for each in choices),
        choices=choices if len(choices) > 1 else [],
    )


def failed(request_id: int, err: RequestError) -> wire.Failed:
    """Return why a request cannot be served."""
    return wire.Failed(request_id, err.code, str(err), err.retryable, details=err.details)


def model(request_id: int, engine: Engine) -> wire.Model:
    """Return what is loaded."""
    info, limits = engine.model, engine.limits
    return wire.Model(
        request_id=request_id,
        name=info.name,
        n_vocab=info.n_vocab,
        n_ctx=limits.n_ctx,
        n_ctx_train=info.n_ctx_train,
        n_params=info.n_params,
        size_bytes=info.size_bytes,
        architecture=info.architecture,
        chat_template=info.chat_template,
        bos_token=info.bos_token,
        end_tokens=list(info.end_tokens),
        adapters=list(info.adapters),
        can_generate=info.can_generate,
        n_embd=info.n_embd,
        n_embed=info.n_embed,
        poolings=list(info.poolings),
        eos_token=info.eos_token,
        adds_bos=info.adds_bos,
        n_image_rows=info.n_image_rows,
        n_batch=limits.n_batch,
        n_ubatch=limits.n_ubatch,
    )
