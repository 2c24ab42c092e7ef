"""How `runnerd top` looks on a terminal: a panel for each daemon, in what height there is."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from runnerd.commands.measures import TRACK, bar
from runnerd.commands.status_text import (
    STATES,
    busy_slots,
    error_text,
    is_loading,
    process_text,
    prompt_text,
    queue_text,
)
from runnerd.commands.watched import Watched
from runnerd.harmless import harmless_line
from runnerd_protocol.messages import DaemonState, SlotState, SlotStatus, Status

STYLES: dict[DaemonState, str] = {
    "starting": "yellow",
    "loading": "yellow",
    "ready": "green",
    "stalled": "red",
    "draining": "yellow",
    "stopped": "dim",
    "failed": "red",
}
SLOT_STYLES: dict[SlotState, str] = {
    "idle": "dim",
    "prompt": "cyan",
    "generating": "green",
    "paused": "yellow",
    "awaiting_media": "yellow",
}
BORDER_COLUMNS = 4
BAR_COLUMNS = 30  # at most
LABEL_COLUMNS = 44  # what else there is in a line with a bar
OTHER_LINES = 11  # of a panel, but for its slots
MIN_SLOT_LINES = 2
PROGRESS_COLUMNS = 10  # of a slot's prompt


def top_view(daemons: Sequence[Watched], console: Console, hint: str) -> RenderableType:
    """Return all daemons and a hint; slots that have no room are counted."""
    n_lines = max(MIN_SLOT_LINES, (console.height - 1) // len(daemons) - OTHER_LINES)
    n_columns = max(1, console.width - BORDER_COLUMNS)
    panels = [_panel(daemon, n_lines, n_columns) for daemon in daemons]
    return Group(*panels, Text(hint, style="dim"))


def _panel(daemon: Watched, n_slot_lines: int, n_columns: int) -> Panel:
    status = daemon.status
    body: list[RenderableType] = []
    if daemon.trouble:
        retry = "; trying again" if daemon.note else ""
        text = f"{harmless_line(daemon.trouble)} for {daemon.silence_s:.0f} s{retry}"
        body.append(Text(text, style="red"))
    if status is not None:
        body.append(_facts(status, n_columns, is_gone=bool(daemon.note)))
        if status.slots and not daemon.note:
            body.append(_slots(status, n_slot_lines, n_columns))
    style = "dim" if status is None or daemon.trouble else STYLES[status.state]
    title = Text(harmless_line(str(daemon.path)), style="bold")
    return Panel(Group(*body), title=title, title_align="left", border_style=style)


def _facts(status: Status, n_columns: int, *, is_gone: bool) -> Table:
    """Return the figures; of a daemon that has gone, what it was, and what went wrong."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    n_bar = max(0, min(BAR_COLUMNS, n_columns - LABEL_COLUMNS))
    for name, value in _last_rows(status) if is_gone else _rows(status, n_bar):
        table.add_row(name, value)
    return table


def _last_rows(status: Status) -> list[tuple[str, Text]]:
    rows = [("was", Text(f"{status.state}  {harmless_line(status.model)}", style="dim"))]
    if error := error_text(status):
        rows.append(("error", Text(error, style="red")))
    return rows


def _rows(status: Status, n_bar: int) -> list[tuple[str, Text]]:
    n_busy = status.n_slots - status.n_slots_free
    state = Text(status.state, style=STYLES[status.state])
    rows = [("state", state.append(f"  {harmless_line(status.model)}", style="default"))]
    if is_loading(status):
        loaded = f"{status.load_fraction:4.0%} {harmless_line(status.load_phase)}"
        rows.append(("load", _gauge(status.load_fraction, 1.0, n_bar, "yellow", loaded)))
    if status.stalled:
        text = f"{harmless_line(status.stalled)}, for {status.step_age_s:.0f} s"
        rows.append(("stalled", Text(text, style="bold red")))
    if status.n_cells:
        cells = f"{status.n_cells_used} of {status.n_cells} cells"
        rows.append(("KV", _gauge(status.n_cells_used, status.n_cells, n_bar, "cyan", cells)))
    if not is_loading(status):
        rows.append(("slots", Text(f"{n_busy} of {status.n_slots} busy")))
        pace = f"{status.tokens_per_s:.1f} tokens/s, a step in {status.step_ms:.1f} ms"
        rows.append(("speed", Text(pace)))
    rows.append(("queue", Text(queue_text(status))))
    if error := error_text(status):
        rows.append(("error", Text(error, style="red")))
    rows.append(("process", Text(process_text(status))))
    return rows


def _gauge(part: float, whole: float, n_columns: int, style: str, text: str) -> Text:
    """Return a bar in a frame of fixed width, and what it says."""
    if not n_columns:
        return Text(text)
    filled = bar(part, whole, n_columns)
    gauge = Text(filled, style=style).append(TRACK * (n_columns - len(filled)), style="dim")
    return gauge.append(f" {text}", style="default")


def _slots(status: Status, n_lines: int, n_columns: int) -> RenderableType:
    busy = busy_slots(status)
    shown = busy[: n_lines if len(busy) <= n_lines else n_lines - 1]
    if not shown:
        return Group()
    n_more = len(busy) - len(shown)
    more = [Text(f"and {n_more} more at work", style="dim")] if n_more else []
    return Group(_slot_table(shown, n_columns), *more)


def _slot_table(slots: Sequence[SlotStatus], n_columns: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("slot", "request", "state", "prompt", "generated", "waited", "age"):
        is_text = heading in ("state", "prompt")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    n_bar = PROGRESS_COLUMNS if n_columns >= 2 * LABEL_COLUMNS else 0
    for slot in slots:
        prompt = Text(prompt_text(slot))
        if slot.state == "prompt":
            done = slot.n_cached + slot.n_evaluated
            prompt = _gauge(done, slot.n_prompt, n_bar, "cyan", prompt_text(slot))
        table.add_row(
            str(slot.slot_id),
            str(slot.client_request_id),
            Text(STATES[slot.state], style=SLOT_STYLES[slot.state]),
            prompt,
            str(slot.n_generated),
            f"{slot.waiting_s:.1f} s",
            f"{slot.age_s:.1f} s",
        )
    return table
