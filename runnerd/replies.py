"""Between the wire's messages and the values that runner and core speak in."""

import os
import secrets
from time import monotonic

import psutil

from runnerd import __version__
from runnerd.core.batch import Sampling
from runnerd.core.prompt import Part, TextPart, TokensPart
from runnerd.core.sequence import FinishReason, Options, Sequence
from runnerd.core.timings import TimingSummary
from runnerd.engine.base import Engine
from runnerd.errors import PromptTooLong, RequestError
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

SERVER_NAME = f"runnerd/{__version__}"
_process = psutil.Process()

INLINE_SIZE = 2**13  # what is longer goes through in a thread; for shorter the hop costs more
MAX_SEED = 2**32 - 2  # llama.cpp takes 2**32 - 1 for "draw one"


def parts_of(prompt: wire.Prompt) -> list[Part]:
    """Return a request's prompt as parts; a bare string is plain text."""
    if isinstance(prompt, str):
        return [TextPart(prompt)]
    return [
        TextPart(part.text, part.special)
        if isinstance(part, wire.TextPart)
        else TokensPart(tuple(part.tokens))
        for part in prompt
    ]


def is_long(prompt: wire.Prompt) -> bool:
    """Whether there are so many parts, characters and token ids that it takes a while."""
    if isinstance(prompt, str):
        return len(prompt) > INLINE_SIZE
    if len(prompt) > INLINE_SIZE:
        return True  # already counting them would take a while
    return len(prompt) + sum(_size_of(part) for part in prompt) > INLINE_SIZE


def _size_of(part: wire.Part) -> int:
    return len(part.text) if isinstance(part, wire.TextPart) else len(part.tokens)


def check_tokens_fit(prompt: wire.Prompt, n_ctx: int) -> None:
    """Refuse more token ids than the context holds, before anything is made of them.

    Raises:
        PromptTooLong: with their number, which any text comes on top of.
    """
    if isinstance(prompt, str):
        return
    n_tokens = sum(len(part.tokens) for part in prompt if isinstance(part, wire.TokensPart))
    if n_tokens > n_ctx:
        raise PromptTooLong(
            f"prompt of at least {n_tokens} tokens, context holds {n_ctx}",
            n_prompt=n_tokens,
            n_ctx=n_ctx,
        )


def options_of(request: wire.Generate) -> Options:
    """Return what a request asks for; a seed is drawn where it names none."""
    seed = secrets.randbelow(MAX_SEED + 1) if request.seed is None else request.seed
    sampling = Sampling(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repeat_penalty=request.repeat_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        penalty_last_n=request.penalty_last_n,
        seed=seed,
    )
    return Options(
        sampling=sampling,
        max_tokens=request.max_tokens,
        stops=tuple(request.stop),
        n_keep=request.n_keep,
        truncate=request.truncate,
        shift=request.shift,
    )


def finished(
    request_id: int,
    sequence: Sequence,
    reason: FinishReason,
    n_text_bytes: int,
    times: TimingSummary,
) -> wire.Finished:
    """Return the last word on a sequence."""
    return wire.Finished(
        request_id=request_id,
        reason=reason,
        stop_sequence=sequence.detokenizer.stopped_by if reason == "stop_sequence" else None,
        n_prompt=sequence.n_prompt,
        n_cached=sequence.n_cached,
        n_generated=sequence.n_generated,
        n_text_bytes=n_text_bytes,
        n_keep=sequence.n_keep,
        n_truncated=sequence.n_truncated,
        n_shifts=sequence.n_shifts,
        n_shifted=sequence.n_shifted,
        seed=sequence.options.sampling.seed,
        timings=wire.Timings(
            queue_ms=round(times.queue_ms, 3),
            ttft_ms=round(times.ttft_ms, 3),
            itl_p50_ms=round(times.itl_p50_ms, 3),
            itl_p95_ms=round(times.itl_p95_ms, 3),
            total_ms=round(times.total_ms, 3),
        ),
    )


def failed(request_id: int, err: RequestError) -> wire.Failed:
    """Return why a request cannot be served."""
    return wire.Failed(request_id, err.code, str(err), err.retryable, details=err.details)


def _resident_bytes() -> int:
    """Return the process's memory; 0 where there is no descriptor left to ask with."""
    try:
        return _process.memory_info().rss
    except OSError:
        return 0


def status(request_id: int, runner: Runner, n_connections: int, *, last: bool) -> wire.Status:
    """Return how the daemon is doing."""
    engine, batcher, figures, now = runner.engine, runner.batcher, runner.figures, monotonic()
    return wire.Status(
        request_id=request_id,
        state=runner.health,
        last=last,
        load_phase=runner.load_phase,
        load_fraction=runner.load_fraction,
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
        resident_bytes=_resident_bytes(),
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
    )
