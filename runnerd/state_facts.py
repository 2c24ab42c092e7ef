"""A status as the facts of one line of the log."""

from collections import Counter

from runnerd_protocol.messages import Status


def state_facts(status: Status) -> dict[str, object]:
    """Return what an operator who asks for the state wants to see."""
    n_slots = Counter(slot.state for slot in status.slots)
    return {
        "state": status.state,
        "load_phase": status.load_phase,
        "load_fraction": round(status.load_fraction, 3),
        "stalled": status.stalled,
        "error_code": status.error_code,
        "error": status.error,
        "n_slots_free": status.n_slots_free,
        "n_slots_prompt": n_slots["prompt"],
        "n_slots_generating": n_slots["generating"],
        "n_slots_paused": n_slots["paused"],
        "n_slots_awaiting_media": n_slots["awaiting_media"],
        "n_waiting": status.n_waiting,
        "oldest_wait_s": status.oldest_wait_s,
        "n_connections": status.n_connections,
        "n_cells_used": status.n_cells_used,
        "n_cells": status.n_cells,
        "n_steps": status.n_steps,
        "step_ms": status.step_ms,
        "step_age_s": status.step_age_s,
        "tokens_per_s": status.tokens_per_s,
    }
