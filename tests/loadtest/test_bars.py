"""Bars: medians over pairs of turns, and which side of a limit a figure is on."""

import msgspec

from loadtest import bars
from loadtest.bars import Bar
from loadtest.streams.against_loop import LoopOutcome, Pair, compare, loop_bars
from loadtest.streams.measure import Figures, Report
from loadtest.streams.recording import Load
from loadtest.streams.text import loop_text, report_text

NOTHING = Figures(*[0.0] * len(Figures.__struct_fields__))


def make_report(
    *,
    tokens_per_s: float = 0.0,
    decode_tokens_per_s: float = 0.0,
    step_ms: float = 0.0,
    deltas_per_s: float = 0.0,
    ready_s: float = 0.0,
    resident_mb: int = 0,
) -> Report:
    figures = msgspec.structs.replace(
        NOTHING,
        tokens_per_s=tokens_per_s,
        decode_tokens_per_s=decode_tokens_per_s,
        step_ms=step_ms,
        deltas_per_s=deltas_per_s,
    )
    return Report(
        load=Load(n_streams=4, n_prompt=128, max_tokens=64),
        n_connections=1,
        n_generated=256,
        n_cached=0,
        n_ended_early=0,
        resident_bytes=resident_mb * 10**6,
        ready_s=ready_s,
        median=figures,
        least=figures,
        greatest=figures,
    )


def make_pair(ours: float, bare: float, ready_s: float = 0.0, resident_mb: int = 0) -> Pair:
    return Pair(
        make_report(
            tokens_per_s=ours, decode_tokens_per_s=ours, ready_s=ready_s, resident_mb=resident_mb
        ),
        make_report(tokens_per_s=bare, decode_tokens_per_s=bare),
    )


def make_bars(pair: Pair, step_ms: float = 0.5, deltas_per_s: float = 40_000.0) -> list[Bar]:
    steps, deltas = make_report(step_ms=step_ms), make_report(deltas_per_s=deltas_per_s)
    return loop_bars([compare(4, [pair])], steps, deltas)


def missed(found: list[Bar]) -> list[str]:
    return [bar.name for bar in bars.missed(found)]


def test_a_ratio_is_the_median_of_those_of_the_pairs() -> None:
    pairs = [make_pair(9.0, 10.0), make_pair(50.0, 100.0), make_pair(0.99, 1.0)]
    assert compare(4, pairs).tokens_ratio == 0.9


def test_a_bare_loop_that_gave_nothing_is_no_ratio_to_be_proud_of() -> None:
    assert compare(4, [make_pair(9.0, 0.0)]).decode_ratio == 0.0


def test_figures_at_their_limits_meet_every_bar() -> None:
    pair = make_pair(95.0, 100.0, ready_s=0.7, resident_mb=60)
    assert missed(make_bars(pair, step_ms=1.0, deltas_per_s=30_000.0)) == []


def test_a_slow_daemon_misses_its_ratio() -> None:
    assert missed(make_bars(make_pair(94.0, 100.0))) == ["tokens/s ratio, 4 streams"]


def test_a_late_and_large_daemon_misses_its_bars() -> None:
    pair = make_pair(100.0, 100.0, ready_s=0.8, resident_mb=61)
    assert missed(make_bars(pair)) == ["ready later by, s", "more resident memory, MB"]


def test_a_busy_host_misses_the_bars_without_an_engine() -> None:
    found = make_bars(make_pair(100.0, 100.0), step_ms=1.1, deltas_per_s=29_999.0)
    assert missed(found) == ["host time per step, 16 streams, ms", "deltas/s, 64 streams"]


def test_the_table_marks_a_missed_bar() -> None:
    pair = make_pair(94.0, 100.0)
    text = loop_text(LoopOutcome([compare(4, [pair])], [], make_bars(pair)))
    lines = [line for line in text.splitlines() if "tokens/s ratio, 4 streams" in line]
    assert all("0.940" in line and "NO" in line for line in lines)
    assert len(lines) == 1


def test_a_report_says_how_many_of_the_tokens_came() -> None:
    assert "256 of 256 tokens generated" in report_text(make_report())
