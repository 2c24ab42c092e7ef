"""A daemon's status in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from runnerd_protocol.messages import DaemonState, SlotState, Status

COUNTERS = {
    "n_steps": ("steps_total", "Forward passes."),
    "n_requests": ("requests_total", "Requests accepted."),
    "n_failed": ("requests_failed_total", "Requests that failed after they were accepted."),
    "n_cancelled": ("completions_cancelled_total", "Completions that were cancelled."),
    "n_timed_out": ("completions_timed_out_total", "Completions that ran out of time."),
    "n_prompt_tokens": ("prompt_tokens_total", "Prompt inputs evaluated."),
    "n_cached_tokens": ("cached_tokens_total", "Prompt inputs found in the cache."),
    "n_generated_tokens": ("generated_tokens_total", "Tokens sampled."),
    "n_shifts": ("context_shifts_total", "Context shifts."),
    "n_suspended": ("suspensions_total", "Times a completion lost its cells to others."),
    "n_embedded": ("embedded_inputs_total", "Inputs embedded."),
    "n_embeds": ("embed_requests_total", "Requests for embeddings taken."),
    "n_embeds_failed": ("embed_requests_failed_total", "Requests for embeddings that failed."),
    "n_images": ("images_total", "Images that requests brought."),
    "n_images_encoded": ("images_encoded_total", "Images that were encoded."),
    "n_images_decoded": ("images_decoded_total", "Image files that were decoded."),
    "encode_s": ("encode_seconds_total", "Time spent on encoding them."),
    "queue_s": ("queue_seconds_total", "Time that ended completions waited."),
    "prefill_s": ("prefill_seconds_total", "Time until their first tokens from there."),
    "decode_s": ("decode_seconds_total", "Time from their first tokens to their last."),
    "sampling_s": ("sampling_seconds_total", "Time spent on picking their tokens."),
}
GAUGES = {
    "uptime_s": ("uptime_seconds", "Time since the start."),
    "load_fraction": ("load_ratio", "How far the load's phase is."),
    "n_slots": ("slots", "Completions that can run at once."),
    "n_slots_free": ("slots_free", "Slots without a completion."),
    "n_waiting": ("waiting", "Completions and requests for embeddings that wait."),
    "max_queue": ("waiting_limit", "How many may wait."),
    "oldest_wait_s": ("oldest_wait_seconds", "How long the first of them has waited."),
    "n_connections": ("connections", "Clients connected."),
    "n_ctx": ("context_inputs", "Inputs that one completion can hold."),
    "n_batch": ("batch_inputs", "Inputs in one forward pass, at most."),
    "n_cells": ("cells", "Cells of the KV cache."),
    "n_cells_used": ("cells_used", "Cells in use, cached prefixes included."),
    "n_checkpoints": ("checkpoints", "Checkpoints kept."),
    "checkpoint_bytes": ("checkpoint_bytes", "Memory of the checkpoints."),
    "image_cache_bytes": ("image_cache_bytes", "Memory of the encoded images that are kept."),
    "image_store_bytes": ("image_store_bytes", "Memory of the image files that are kept."),
    "image_store_bytes_in_use": (
        "image_store_in_use_bytes",
        "Memory of those that requests need.",
    ),
    "tokens_per_s": ("generated_tokens_per_second", "Tokens sampled, over the last seconds."),
    "step_ms": ("step_milliseconds", "Duration of the last forward pass."),
    "step_age_s": ("step_age_seconds", "Age of the pass or encode in progress."),
    "resident_bytes": ("resident_bytes", "Memory of the process."),
}


def prometheus_text(status: Status) -> str:
    """Return all counters and gauges; of states those that apply are 1, the others 0."""
    return "\n".join(_lines(status)) + "\n"


def _lines(status: Status) -> Iterator[str]:
    for kind, metrics in (("counter", COUNTERS), ("gauge", GAUGES)):
        for field, (name, meaning) in metrics.items():
            yield f"# HELP runnerd_{name} {meaning}"
            yield f"# TYPE runnerd_{name} {kind}"
            yield f"runnerd_{name} {getattr(status, field)}"
    yield from _gauge("stalled", "Whether a step or an encode takes too long.")
    yield f"runnerd_stalled {int(bool(status.stalled))}"
    yield from _gauge("state", "What the daemon is doing.")
    for state in get_args(DaemonState):
        yield f'runnerd_state{{state="{state}"}} {int(state == status.state)}'
    yield from _gauge("slots_by_state", "Slots, by what they do.")
    n_slots = Counter(slot.state for slot in status.slots)
    for slot_state in get_args(SlotState):
        yield f'runnerd_slots_by_state{{state="{slot_state}"}} {n_slots[slot_state]}'


def _gauge(name: str, meaning: str) -> Iterator[str]:
    yield f"# HELP runnerd_{name} {meaning}"
    yield f"# TYPE runnerd_{name} gauge"
