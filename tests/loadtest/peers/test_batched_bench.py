"""The adapter of the tool that decodes at full speed."""

from pathlib import Path

import pytest

from loadtest.comparison.exchange import PeerUnavailable
from loadtest.comparison.peers.batched_bench import batched_bench_of, read_rows
from tests.loadtest.peers.asking import setup_of

pytestmark = pytest.mark.anyio

ROW = (
    '{"n_kv_max": 512, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0,'
    ' "n_gpu_layers": -1, "n_threads": 1, "n_threads_batch": 1, "pp": 16, "tg": 8, "pl": 2,'
    ' "n_kv": 48, "t_pp": 0.652451, "speed_pp": 49.0, "t_tg": 0.645462, "speed_tg": 24.788446,'
    ' "t": 1.297913, "speed": 36.982417}'
)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "llama-batched-bench"
    path.write_text(f"#!/bin/sh\necho loading >&2\ncat <<'END'\n{ROW}\nEND\n")
    path.chmod(0o755)
    return path


async def test_it_runs_once_for_each_way_of_laying_out_the_cache(bench: Path) -> None:
    runs = await batched_bench_of(bench, setup_of(Path("model.gguf")), 16, 8, [1, 2])
    assert [run.kv_unified for run in runs] == [False, True]
    assert [run.command[-1] for run in runs] == ["--no-kv-unified", "--kv-unified"]
    command = " ".join(runs[0].command)
    assert " -c 2048 -b 2048 -ub 512 -t 1 -tb 1 -npp 16 -ntg 8 -npl 1,2 " in command
    (row,) = runs[0].rows
    assert (row.n_streams, row.n_prompt, row.n_generated) == (2, 16, 8)
    assert (row.prefill_s, row.decode_s) == (0.652451, 0.645462)
    assert row.decode_tokens_per_s == pytest.approx(16 / row.decode_s)


async def test_a_run_that_fails_makes_it_unavailable_and_says_why(bench: Path) -> None:
    bench.write_text("#!/bin/sh\necho no memory\nexit 1\n")
    with pytest.raises(PeerUnavailable, match="status 1: no memory"):
        await batched_bench_of(bench, setup_of(Path("model.gguf")), 16, 8, [1])


async def test_no_rows_at_all_are_an_error(bench: Path) -> None:
    bench.write_text("#!/bin/sh\necho nothing\n")
    with pytest.raises(PeerUnavailable, match="has measured nothing"):
        await batched_bench_of(bench, setup_of(Path("model.gguf")), 16, 8, [1])


def test_rows_that_have_changed_their_form_are_told() -> None:
    with pytest.raises(PeerUnavailable, match="writes something else now"):
        read_rows('{"n_kv_max": 512, "streams": 2}\n')
