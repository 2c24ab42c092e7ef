"""`runnerd status`: how a daemon is doing."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
import typer

from runnerd.commands.failure import UNAVAILABLE, USAGE, CommandFailed, connected, translated
from runnerd.commands.memory_text import verdict
from runnerd.commands.path_options import socket_option
from runnerd.commands.prometheus import prometheus_text
from runnerd.commands.status_text import (
    busy_slots,
    error_text,
    is_loading,
    process_text,
    queue_text,
    slot_text,
    step_text,
)
from runnerd.harmless import harmless_json, harmless_line
from runnerd_protocol.messages import Status

if TYPE_CHECKING:
    from rich.table import Table


def status(
    socket: Annotated[Path, socket_option("Where it listens.")],
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.05, max=3600.0)
    ] = 1.0,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON object; with --watch one per line.")
    ] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Counters and gauges for a scraper's text file.")
    ] = False,
) -> None:
    """Show how a daemon is doing.

    With --prometheus, stdout gets all figures in the text format of Prometheus, named runnerd_*.

    Exit status: 0 it answered, 69 nobody listens or the connection broke.
    """
    if prometheus and (watch or json):
        raise CommandFailed("--prometheus goes with neither --watch nor --json", USAGE)

    async def run() -> None:
        async with connected(socket) as client:
            if prometheus:
                sys.stdout.write(prometheus_text(await client.status()))
                return
            if not watch:
                _show(await client.status(), json=json)
                return
            if json or not sys.stdout.isatty():
                async with client.subscribe(interval) as statuses:
                    async for each in statuses:
                        _show(each, json=json)
            else:
                from rich.live import Live

                async with client.subscribe(interval) as statuses:
                    with Live(auto_refresh=False) as live:
                        async for each in statuses:
                            live.update(_table(each), refresh=True)
            raise CommandFailed("the daemon has stopped", UNAVAILABLE)

    with translated():
        anyio.run(run)


def _show(status: Status, *, json: bool) -> None:
    if json:
        fields = msgspec.structs.asdict(status)
        del fields["request_id"], fields["last"]
        sys.stdout.write(harmless_json(msgspec.json.encode(fields)) + "\n")
        sys.stdout.flush()
    else:
        from runnerd.commands.output import Output

        Output().print(_table(status))


def _table(status: Status) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(status):
        table.add_row(name, Text(text))
    return table


def _rows(status: Status) -> list[tuple[str, str]]:
    state = status.state
    rows: list[tuple[str, str]] = [("state", state)]
    if is_loading(status):
        loaded = f"{harmless_line(status.load_phase)} {status.load_fraction:.0%}"
        rows = [("state", f"{state} {loaded}")]
    if status.stalled:
        rows.append(("stalled", harmless_line(status.stalled)))
    if error := error_text(status):
        rows.append(("error", error))
    if status.memory is not None:
        rows.append(("memory", "\n".join(verdict(status.memory))))
    if not is_loading(status):
        n_busy = status.n_slots - status.n_slots_free
        rows += [
            ("model", harmless_line(status.model)),
            ("slots", f"{n_busy} of {status.n_slots} busy, {status.n_ctx} tokens each"),
        ]
        rows += [(f"slot {slot.slot_id}", slot_text(slot)) for slot in busy_slots(status)]
    rows.append(("waiting", queue_text(status)))
    if not is_loading(status):
        rows += _figures(status)
    rows.append(("process", process_text(status)))
    return rows


def _figures(status: Status) -> list[tuple[str, str]]:
    return [
        ("connections", str(status.n_connections)),
        ("KV cache", f"{status.n_cells_used} of {status.n_cells} cells used"),
        ("speed", f"{status.tokens_per_s:.1f} tokens/s generated"),
        ("steps", step_text(status)),
        (
            "requests",
            f"{status.n_requests}, {status.n_failed} failed, {status.n_cancelled} cancelled,"
            f" {status.n_timed_out} out of time",
        ),
        (
            "tokens",
            f"{status.n_prompt_tokens} prompt, {status.n_cached_tokens} cached,"
            f" {status.n_generated_tokens} generated",
        ),
        ("embeddings", f"{status.n_embedded} inputs"),
        (
            "images",
            f"{status.n_images}, {status.n_images_encoded} encoded in {status.encode_s:.1f} s,"
            f" {status.image_cache_bytes / 2**20:.0f} MiB kept,"
            f" {status.image_store_bytes / 2**20:.0f} MiB of files",
        ),
    ]
