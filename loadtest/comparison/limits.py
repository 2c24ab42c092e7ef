"""What the model alone can do: the limits that systems are held against.

A limit serves nobody. It decodes streams in lockstep, or measures our daemon with an engine that
costs nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from loadtest.comparison.exchange import PeerUnavailable, Setup
from loadtest.comparison.figures import Figures
from loadtest.comparison.peers.batched_bench import BenchRun, run_batched_bench
from loadtest.comparison.workloads import Steady
from loadtest.streams.daemons import run_engine_free
from loadtest.streams.raw import run_raw
from loadtest.streams.recording import Load, ModelSetup

DELTA_STREAMS, DELTA_TOKENS = 64, 512  # enough that deltas, not steps, are what costs time
N_ROUNDS = 5  # of half a second each: one alone says little


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one limit, and the command that gave them."""

    figures: Figures
    command: list[str]


Limit = Callable[[Setup, Steady], Awaitable[Measured]]


def limits() -> Mapping[str, Limit]:
    """Return all limits, by the name that each has in reports."""
    return {
        "batched-bench": batched_bench,
        "raw-loop": raw_loop,
        "engine-free": engine_free,
    }


async def batched_bench(setup: Setup, steady: Steady) -> Measured:
    """Run llama-batched-bench in both KV modes; the faster one is the limit.

    A prompt's evaluation gives the first token of each stream, so it decodes one less.

    Raises:
        PeerUnavailable: it is not built, or has failed.
    """
    n_decoded = steady.n_generated - 1
    return fastest(
        await run_batched_bench(setup, steady.n_prompt, n_decoded, [steady.n_streams]), steady
    )


def fastest(runs: Sequence[BenchRun], steady: Steady) -> Measured:
    """Return the figures of the run that takes least for what was asked.

    Raises:
        PeerUnavailable: none has measured anything.
    """
    rows = [(run, row) for run in runs for row in run.rows]
    if not rows:
        raise PeerUnavailable("llama-batched-bench has measured nothing")
    run, row = min(rows, key=lambda each: each[1].prefill_s + each[1].decode_s)
    n_generated = steady.n_streams * steady.n_generated
    return Measured(
        {
            "tokens_per_s": n_generated / (row.prefill_s + row.decode_s),
            "decode_tokens_per_s": row.decode_tokens_per_s,
            "prefill_tokens_per_s": steady.n_streams * steady.n_prompt / row.prefill_s,
        },
        run.command,
    )


async def raw_loop(setup: Setup, steady: Steady) -> Measured:
    """Run our own bare loop of llama_decode and argmax.

    Raises:
        RawFailed: it has ended early.
    """
    raw = ModelSetup(
        model=str(setup.model),
        n_ctx=setup.n_ctx,
        n_batch=setup.n_batch,
        n_ubatch=setup.n_ubatch,
        n_threads=setup.n_threads,
        kv="unified" if setup.kv_unified else "split",
    )
    report = await run_raw(raw, _load(steady.n_streams, steady.n_prompt, steady.n_generated))
    typical = report.median
    return Measured(
        {
            "tokens_per_s": typical.tokens_per_s,
            "decode_tokens_per_s": typical.decode_tokens_per_s,
            "prefill_tokens_per_s": typical.prefill_tokens_per_s,
        },
        ["python", "-m", "loadtest", "raw"],
    )


async def engine_free(_setup: Setup, steady: Steady) -> Measured:
    """Run our daemon with an engine that costs next to nothing: what is left is its own time.

    Raises:
        ClientError: the daemon has ended early.
    """
    load = replace(_load(steady.n_streams, 16, DELTA_TOKENS), n_rounds=N_ROUNDS)
    steps = await run_engine_free(load)
    deltas = await run_engine_free(replace(load, n_streams=DELTA_STREAMS))
    return Measured(
        {"step_ms": steps.median.step_ms, "deltas_per_s": deltas.median.deltas_per_s},
        ["python", "-m", "loadtest", "run", "--engine-free"],
    )


def _load(n_streams: int, n_prompt: int, max_tokens: int) -> Load:
    return Load(n_streams=n_streams, n_prompt=n_prompt, max_tokens=max_tokens)
