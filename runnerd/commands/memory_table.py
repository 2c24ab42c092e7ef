"""What a model takes of memory, as tables with bars for a terminal."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runnerd.commands.measures import TRACK, bar, size
from runnerd.commands.memory_text import (
    device_title,
    heading,
    layer_groups,
    needed_bytes,
    parts_of,
    room,
    usable_bytes,
    verdict,
)
from runnerd.harmless import harmless_line
from runnerd_protocol.messages import DeviceMemory, Memory

BAR_COLUMNS = 40  # at most; a narrow terminal has room for fewer, or none
NARROW_COLUMNS = 60  # from so many on, there is room for remarks
FIGURE_COLUMNS = 28  # what the names and sizes beside a bar take


def memory_view(memory: Memory, console: Console) -> RenderableType:
    """Return the whole report."""
    n_columns = max(0, min(BAR_COLUMNS, console.width - FIGURE_COLUMNS))
    parts: list[RenderableType] = [Text(heading(memory), style="bold")]
    for device in memory.devices:
        parts += [Text(""), Text(device_title(device)), _device_table(device, n_columns)]
        parts.append(Text(f" {room(device)}", style="dim"))
    colour = "green" if memory.fits else "red"
    parts += [Text(""), _layer_table(memory, console.width), Text("")]
    parts += [Text(sentence, style=colour) for sentence in verdict(memory)]
    return Group(*parts)


def _device_table(device: DeviceMemory, n_columns: int) -> Table:
    """Return a device's parts, as shares of their sum, and that against what may be taken."""
    needed, usable = needed_bytes(device), usable_bytes(device)
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    for name, n_bytes in parts_of(device):
        table.add_row(name, size(n_bytes), Text(bar(n_bytes, needed, n_columns), style="cyan"))
    colour = "green" if needed <= usable else "red"
    filled = bar(needed, max(usable, 1), n_columns)
    total = Text(filled, style=colour).append(TRACK * (n_columns - len(filled)), style="dim")
    table.add_row(Text("needed", style="bold"), Text(size(needed), style="bold"), total)
    return table


def _layer_table(memory: Memory, n_columns: int) -> Table:
    is_narrow = n_columns < NARROW_COLUMNS
    table = Table(box=None, padding=(0, 1 if is_narrow else 2, 0, 0), header_style="dim")
    table.add_column("layers", overflow="fold", min_width=6)
    table.add_column("device", no_wrap=True)
    table.add_column("weights", justify="right", no_wrap=True)
    table.add_column("KV cache", justify="right", no_wrap=True)
    if not is_narrow:
        table.add_column("")
    if memory.input_bytes:
        table.add_row("input", "", size(memory.input_bytes))
    for group in layer_groups(memory.layers):
        layer = group.layer
        cells = [
            Text(group.numbers),
            Text(harmless_line(layer.device)),
            Text(size(layer.weight_bytes)),
            Text(size(layer.kv_bytes) if layer.kv_bytes else ""),
        ]
        table.add_row(*cells, *([] if is_narrow else [Text(group.remark)]))
    return table
