"""llama-batched-bench: how fast llama.cpp decodes when nothing else is done.

It evaluates prompts of equal length, then generates the same number of tokens for all of them in
lockstep, without looking at what comes out. Its numbers are the raw limit.

| Setup | llama-batched-bench |
|---|---|
| `n_ctx` | `-c`, of all streams together: the largest number of streams times as much |
| `n_batch`, `n_ubatch`, `n_threads` | `-b`, `-ub`, `-t` and `-tb` |

`n_slots` and `kv_unified` are not looked at: it runs with as many streams as asked, in both ways
of laying out the KV cache.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct, field

from loadtest.comparison.exchange import PeerUnavailable, Setup
from loadtest.comparison.peers.places import existing, places
from loadtest.comparison.peers.process import running


class BenchRow(Struct, frozen=True, kw_only=True):
    """What it has measured with one number of streams, as it calls it.

    `prefill_s` and `decode_s` are of all streams together, `decode_tokens_per_s` too.
    """

    n_streams: int = field(name="pl")
    n_prompt: int = field(name="pp")
    n_generated: int = field(name="tg")
    prefill_s: float = field(name="t_pp")
    decode_s: float = field(name="t_tg")
    decode_tokens_per_s: float = field(name="speed_tg")


class BenchRun(Struct, frozen=True, kw_only=True):
    """One run of the tool."""

    kv_unified: bool
    command: list[str]
    rows: list[BenchRow]


async def run_batched_bench(
    setup: Setup, n_prompt: int, n_generated: int, n_streams: Sequence[int]
) -> list[BenchRun]:
    """Run the tool with the KV cache split, then unified; every number of streams in each.

    Raises:
        PeerUnavailable: it is not built, or has failed.
    """
    program = Path(existing(places().batched_bench))
    return await batched_bench_of(program, setup, n_prompt, n_generated, n_streams)


async def batched_bench_of(
    program: Path, setup: Setup, n_prompt: int, n_generated: int, n_streams: Sequence[int]
) -> list[BenchRun]:
    """Run the tool from its file; otherwise as `run_batched_bench`."""
    asked = _command(program, setup, n_prompt, n_generated, n_streams)
    split = await _run([*asked, "--no-kv-unified"], is_unified=False)
    return [split, await _run([*asked, "--kv-unified"], is_unified=True)]


async def _run(command: list[str], *, is_unified: bool) -> BenchRun:
    with TemporaryDirectory(prefix="peer-") as folder:
        log = Path(folder) / "bench.log"
        async with running(command, log) as process:
            if await process.wait() != 0:
                raise PeerUnavailable(process.last_words)
        rows = read_rows(log.read_text(errors="replace"))
    if not rows:
        raise PeerUnavailable(f"{command[0]} has measured nothing")
    return BenchRun(kv_unified=is_unified, command=command, rows=rows)


def read_rows(output: str) -> list[BenchRow]:
    """Return the rows in the tool's output, between which its log is."""
    lines = [line for line in output.splitlines() if line.startswith('{"n_kv_max"')]
    try:
        return [msgspec.json.decode(line, type=BenchRow) for line in lines]
    except msgspec.DecodeError as err:
        raise PeerUnavailable(f"llama-batched-bench writes something else now: {err}") from err


def _command(
    program: Path,
    setup: Setup,
    n_prompt: int,
    n_generated: int,
    n_streams: Sequence[int],
) -> list[str]:
    figures = {
        "-c": max(n_streams) * setup.n_ctx,
        "-b": setup.n_batch,
        "-ub": setup.n_ubatch,
        "-t": setup.n_threads,
        "-tb": setup.n_threads,
        "-npp": n_prompt,
        "-ntg": n_generated,
        "-npl": ",".join(map(str, n_streams)),
    }
    return [
        *(str(program), "-m", str(setup.model), "--output-format", "jsonl"),
        *(word for option, value in figures.items() for word in (option, str(value))),
    ]
