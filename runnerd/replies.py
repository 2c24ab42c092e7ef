"""What the daemon says, out of the values that runner and core speak in."""

import os
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import psutil
from msgspec.structs import replace

from runnerd import __version__
from runnerd.core.batch import Logprobs
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.core.timings import TimingSummary
from runnerd.engine.base import Engine
from runnerd.errors import RequestError
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

SERVER_NAME = f"runnerd/{__version__}"
MEMORY_S = 1.0  # the kernel takes its time to say how much memory the process has
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


class _Memory:
    """The process's memory, asked for at most once a second."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._n_bytes = 0
        self._asked_at = float("-inf")

    def n_bytes(self, now: float) -> int:
        """Return it; 0 where there is no descriptor left to ask with."""
        if now - self._asked_at >= MEMORY_S:
            self._asked_at = now
            try:
                self._n_bytes = self._process.memory_info().rss
            except OSError:
                self._n_bytes = 0
        return self._n_bytes


_memory = _Memory()


def status(request_id: int, runner: Runner, n_connections: int, *, last: bool) -> wire.Status:
    """Return how the daemon is doing."""
    engine, batcher, figures, now = runner.engine, runner.batcher, runner.figures, monotonic()
    return wire.Status(
        request_id=request_id,
        state=runner.health,
        last=last,
        load_phase=runner.loading.phase,
        load_fraction=runner.loading.fraction,
        model=runner.config.engine.model if engine is None else engine.model.name,
        pid=os.getpid(),
        uptime_s=round(figures.uptime_s(now), 3),
        n_slots=runner.config.engine.n_slots,
        n_slots_free=0 if batcher is None else batcher.residency.pool.n_free,
        n_waiting=runner.n_waiting,
        max_queue=runner.config.max_queue,
        n_connections=n_connections,
        n_ctx=0 if engine is None else engine.limits.n_ctx,
        n_batch=0 if engine is None else engine.limits.n_batch,
        n_cells=0 if engine is None else engine.limits.n_cells,
        n_cells_used=0 if batcher is None else batcher.residency.ledger.n_used,
        n_steps=figures.n_steps,
        n_requests=figures.n_requests,
        n_failed=figures.n_failed,
        n_prompt_tokens=0 if batcher is None else batcher.n_prefilled,
        n_generated_tokens=figures.n_generated_tokens,
        tokens_per_s=round(figures.tokens_per_s(now), 2),
        step_ms=round(figures.step_s * 1e3, 3),
        step_age_s=round(runner.step_age_s, 3),
        resident_bytes=_memory.n_bytes(now),
        n_cached_tokens=figures.n_cached_tokens,
        n_cancelled=figures.n_cancelled,
        n_timed_out=figures.n_timed_out,
        n_suspended=figures.n_suspended,
        n_shifts=figures.n_shifts,
        n_embedded=figures.n_embedded,
        n_embeds=figures.n_embeds,
        n_embeds_failed=figures.n_embeds_failed,
        n_checkpoints=0 if batcher is None else batcher.residency.checkpoints.n_kept,
        checkpoint_bytes=0 if batcher is None else batcher.residency.checkpoints.n_bytes,
        n_generated_limit=0 if batcher is None else batcher.n_generated_limit,
        queue_s=round(figures.queue_s, 3),
        prefill_s=round(figures.prefill_s, 3),
        decode_s=round(figures.decode_s, 3),
        sampling_s=round(figures.sampling_s, 3),
        n_images=runner.pictures.n_images,
        n_images_encoded=figures.n_images_encoded,
        image_cache_bytes=runner.image_cache_bytes,
        encode_s=round(figures.encode_s, 3),
        n_images_decoded=runner.pictures.n_decoded,
        image_store_bytes=runner.pictures.n_bytes,
        image_store_bytes_in_use=runner.pictures.n_bytes_in_use,
    )


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
