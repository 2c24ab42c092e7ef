"""How far the daemon may be from the bare loop, and what it must do by itself.

Daemon and bare loop take turns, each in a new process, so that what else the machine does
meets both. Two turns in a row are a pair; what counts is the median over the pairs.
"""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from loadtest.bars import Bar, at_least, at_most
from loadtest.console import Tell
from loadtest.streams.daemons import run_daemon, run_engine_free
from loadtest.streams.measure import Report
from loadtest.streams.raw import run_raw
from loadtest.streams.recording import Load, ModelSetup

N_STREAMS = (1, 4, 8, 16)
N_PROMPT, MAX_TOKENS = 128, 64
N_CTX = 256  # the least that holds both; each side touches the whole cache
TURN_TOKENS = 512  # a turn of few streams has several rounds: a second of decoding says little

LEAST_RATIO = 0.95
MOST_READY_S = 0.7
MOST_RESIDENT_MB = 60.0
LEAST_DELTAS_PER_S = 30_000.0
MOST_STEP_MS = 1.0

DELTA_STREAMS, STEP_STREAMS = 64, 16
ENGINE_FREE_TOKENS = 512


class Pair(Struct, frozen=True):
    """A turn of the daemon and a turn of the bare loop, one after the other."""

    daemon: Report
    raw: Report


class Comparison(Struct, frozen=True):
    """All pairs of one number of streams, and the medians over them.

    Ratios are daemon to bare loop, differences daemon less bare loop.
    """

    n_streams: int
    pairs: list[Pair]
    tokens_ratio: float
    decode_ratio: float
    ready_diff_s: float
    resident_diff_mb: float


class LoopOutcome(Struct, frozen=True):
    """Everything that was measured, and the bars."""

    comparisons: list[Comparison]
    engine_free: list[Report]
    bars: list[Bar]


async def measure_bars(model: str, n_rounds: int, tell: Tell) -> LoopOutcome:
    """Measure every bar, `n_rounds` pairs for each number of streams.

    Raises:
        RawFailed, ClientError: a process has ended early, and why.
    """
    # Said, for the daemon's "auto" is not llama.cpp's, and so not the loop's.
    setup = ModelSetup(model=model, n_ctx=N_CTX, flash_attn="off")
    comparisons = []
    for n_streams in N_STREAMS:
        pairs = []
        for n_pair in range(n_rounds):
            pairs.append(await _run_pair(setup, _load(n_streams, seed=1 + n_pair)))
            tell(_progress(pairs[-1]))
        comparisons.append(compare(n_streams, pairs))
    engine_free = []
    for n_streams in (STEP_STREAMS, DELTA_STREAMS):
        load = Load(
            n_streams=n_streams, n_prompt=16, max_tokens=ENGINE_FREE_TOKENS, n_rounds=n_rounds
        )
        engine_free.append(await run_engine_free(load))
        tell(f"{n_streams} streams without an engine")
    return LoopOutcome(comparisons, engine_free, loop_bars(comparisons, *engine_free))


def compare(n_streams: int, pairs: Sequence[Pair]) -> Comparison:
    """Sum up the pairs of one number of streams; there is at least one."""
    return Comparison(
        n_streams=n_streams,
        pairs=list(pairs),
        tokens_ratio=median(
            _ratio(p.daemon.median.tokens_per_s, p.raw.median.tokens_per_s) for p in pairs
        ),
        decode_ratio=median(
            _ratio(p.daemon.median.decode_tokens_per_s, p.raw.median.decode_tokens_per_s)
            for p in pairs
        ),
        ready_diff_s=median(p.daemon.ready_s - p.raw.ready_s for p in pairs),
        resident_diff_mb=median(
            (p.daemon.resident_bytes - p.raw.resident_bytes) / 1e6 for p in pairs
        ),
    )


def loop_bars(comparisons: Sequence[Comparison], steps: Report, deltas: Report) -> list[Bar]:
    """Hold the figures against their limits."""
    found = []
    for each in comparisons:
        n_streams = f"{each.n_streams} streams"
        found.append(at_least(f"tokens/s ratio, {n_streams}", each.tokens_ratio, LEAST_RATIO))
    ready_diff_s = median(each.ready_diff_s for each in comparisons)
    resident_diff_mb = max(each.resident_diff_mb for each in comparisons)
    step_ms, deltas_per_s = steps.median.step_ms, deltas.median.deltas_per_s
    return [
        *found,
        at_most("ready later by, s", ready_diff_s, MOST_READY_S),
        at_most("more resident memory, MB", resident_diff_mb, MOST_RESIDENT_MB),
        at_most(f"host time per step, {STEP_STREAMS} streams, ms", step_ms, MOST_STEP_MS),
        at_least(f"deltas/s, {DELTA_STREAMS} streams", deltas_per_s, LEAST_DELTAS_PER_S),
    ]


async def _run_pair(setup: ModelSetup, load: Load) -> Pair:
    return Pair(await run_daemon(setup, load), await run_raw(setup, load))


def _load(n_streams: int, seed: int) -> Load:
    n_rounds = max(1, TURN_TOKENS // (n_streams * MAX_TOKENS))
    return Load(
        n_streams=n_streams,
        n_prompt=N_PROMPT,
        max_tokens=MAX_TOKENS,
        n_rounds=n_rounds,
        seed=seed,
    )


def _progress(pair: Pair) -> str:
    daemon, raw = pair.daemon.median, pair.raw.median
    return (
        f"{pair.raw.load.n_streams} streams: daemon {daemon.tokens_per_s:.1f} tokens/s"
        f" ({daemon.decode_tokens_per_s:.1f} decoding),"
        f" bare loop {raw.tokens_per_s:.1f} ({raw.decode_tokens_per_s:.1f})"
    )


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else 0.0
