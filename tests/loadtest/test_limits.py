"""What the model alone can do, by the word of those that measure it."""

import pytest

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.figures import KNOWN
from loadtest.comparison.limits import fastest, limits
from loadtest.comparison.peers.batched_bench import BenchRow, BenchRun
from loadtest.comparison.verdicts import ENGINE_FREE, LIMIT
from loadtest.comparison.workloads import Steady, workloads

STEADY = Steady(n_streams=4, n_prompt=100, n_generated=50)


def run(name: str, *seconds: tuple[float, float]) -> BenchRun:
    rows = [
        BenchRow(
            n_streams=4,
            n_prompt=100,
            n_generated=49,
            prefill_s=prefill_s,
            decode_s=decode_s,
            decode_tokens_per_s=4 * 49 / decode_s,
        )
        for prefill_s, decode_s in seconds
    ]
    return BenchRun(kv_unified=False, command=[name], rows=rows)


def test_the_faster_way_of_laying_out_the_cache_is_the_limit() -> None:
    measured = fastest([run("split", (4.0, 6.0)), run("unified", (2.0, 6.0))], STEADY)
    assert measured.command == ["unified"]
    assert measured.figures["tokens_per_s"] == pytest.approx(200 / 8.0)
    assert measured.figures["prefill_tokens_per_s"] == pytest.approx(400 / 2.0)
    assert set(measured.figures) <= set(KNOWN)


def test_nothing_measured_is_no_limit() -> None:
    with pytest.raises(PeerUnavailable):
        fastest([run("split")], STEADY)


def test_every_limit_that_a_workload_or_a_bar_names_is_there() -> None:
    named = {name for workload in workloads().values() for name in workload.limits}
    assert named | {LIMIT, ENGINE_FREE} == set(limits())
    assert all(each.steady for each in workloads().values() if each.limits)
