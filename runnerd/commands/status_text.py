"""What a daemon tells of itself, in words. Its own texts are made harmless here."""

from runnerd.commands.measures import clock, size
from runnerd.harmless import harmless_line
from runnerd_protocol.messages import SlotState, SlotStatus, Status

STATES: dict[SlotState, str] = {
    "idle": "idle",
    "prompt": "prompt",
    "generating": "generating",
    "paused": "paused",
    "awaiting_media": "awaiting media",
}


def is_loading(status: Status) -> bool:
    """Whether there is no model yet, but will be."""
    return status.state in ("starting", "loading")


def process_text(status: Status) -> str:
    """Return what the daemon is to the system."""
    return f"{status.pid}, up {clock(status.uptime_s)}, {size(status.resident_bytes)} resident"


def queue_text(status: Status) -> str:
    """Return who waits, and how long the first has."""
    oldest = f", the oldest for {status.oldest_wait_s:.1f} s" if status.n_waiting else ""
    return f"{status.n_waiting} requests{oldest}, at most {status.max_queue}"


def step_text(status: Status) -> str:
    """Return how long steps take."""
    age = f", {status.step_age_s:.1f} s into what runs now" if status.step_age_s else ""
    return f"{status.step_ms:.1f} ms the last one, {status.n_steps} so far{age}"


def error_text(status: Status) -> str:
    """Return what went wrong last, if anything did."""
    code = f"{harmless_line(status.error_code)}: " if status.error_code else ""
    return code + harmless_line(status.error) if status.error else ""


def busy_slots(status: Status) -> list[SlotStatus]:
    """Return the slots that work for a request."""
    return [slot for slot in status.slots if slot.state != "idle"]


def prompt_text(slot: SlotStatus) -> str:
    """Return how much of a slot's prompt is done, and how much was in the cache."""
    done = min(slot.n_cached + slot.n_evaluated, slot.n_prompt)
    cached = f" ({slot.n_cached} cached)" if slot.n_cached else ""
    return f"{done}/{slot.n_prompt}{cached}" if done < slot.n_prompt else f"{done}{cached}"


def slot_text(slot: SlotStatus) -> str:
    """Return what a slot does, in a line."""
    return (
        f"request {slot.client_request_id} {STATES[slot.state]}, prompt {prompt_text(slot)},"
        f" {slot.n_generated} generated, waited {slot.waiting_s:.1f} s, age {slot.age_s:.1f} s"
    )


def status_line(status: Status) -> str:
    """Return the whole in one line of names and values."""
    n_busy = status.n_slots - status.n_slots_free
    facts = [f"state={status.state}"]
    if is_loading(status):
        facts.append(f"phase={harmless_line(status.load_phase)}:{status.load_fraction:.0%}")
    else:
        facts += [
            f"slots={n_busy}/{status.n_slots}",
            f"cells={status.n_cells_used}/{status.n_cells}",
            f"step_ms={status.step_ms:.1f}",
            f"tokens_per_s={status.tokens_per_s:.1f}",
        ]
    facts += [
        f"waiting={status.n_waiting}",
        f"oldest_wait_s={status.oldest_wait_s:.1f}",
        f"resident_mib={status.resident_bytes / 2**20:.0f}",
    ]
    if status.stalled:
        facts.append(f"stalled={harmless_line(status.stalled)}")
    if error := error_text(status):
        facts.append(f'error="{error}"')
    return " ".join(facts)
