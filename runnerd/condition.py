"""How the daemon is doing, for those who watch it: by the runner and by what runs its steps."""

import os
from time import monotonic

import psutil

from runnerd.memory_report import memory_of
from runnerd.runner import Runner
from runnerd.trouble import Trouble, trouble_of
from runnerd_protocol import messages as wire

MEMORY_S = 1.0  # the kernel takes its time to say how much memory the process has


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
    trouble, failure = _trouble(runner), runner.failure
    plan = None if failure is None else failure.memory
    return wire.Status(
        request_id=request_id,
        state=health(runner),
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
        step_age_s=round(runner.watches.age_s, 3),
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
        image_cache_bytes=image_cache_bytes(runner),
        encode_s=round(figures.encode_s, 3),
        n_images_decoded=runner.pictures.n_decoded,
        image_store_bytes=runner.pictures.n_bytes,
        image_store_bytes_in_use=runner.pictures.n_bytes_in_use,
        slots=slots(runner, now),
        stalled=runner.watches.stalled,
        error=trouble.text,
        error_code=trouble.code,
        memory=None if plan is None else memory_of(plan, runner.config),
        oldest_wait_s=round(_oldest_wait_s(runner, now), 3),
    )


def health(runner: Runner) -> wire.DaemonState:
    """Return the state, or `stalled` when a step or an encode has taken too long so far."""
    return "stalled" if runner.watches.stalled else runner.state


def slots(runner: Runner, now: float) -> list[wire.SlotStatus]:
    """Return what each slot works for; nothing before there are any."""
    return [] if runner.loop is None else runner.loop.report.slots(now)


def image_cache_bytes(runner: Runner) -> int:
    """Return the memory of the encoded images that are kept."""
    encoding = None if runner.loop is None else runner.loop.encoding
    return 0 if encoding is None else encoding.cache_bytes


def _trouble(runner: Runner) -> Trouble:
    """Return why the daemon has failed, or else what has gone wrong last."""
    return runner.troubles.last if runner.failure is None else trouble_of(runner.failure)


def _oldest_wait_s(runner: Runner, now: float) -> float:
    """Return how long who is next has waited, for the model or for a slot; 0 if nobody waits."""
    if runner.batcher is None:
        return runner.loading.oldest_wait_s(now)
    waiting = runner.batcher.waiting
    return waiting.first.timings.queue_s(now) if waiting else 0.0
