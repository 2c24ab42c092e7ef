"""Embeddings are compared with each alone, and generation with and without them."""

from pathlib import Path

import pytest

from loadtest.embeddings.measuring import measure_embeddings
from loadtest.embeddings.text import embedding_text
from loadtest.streams.recording import Load
from runnerd.launcher import launch

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the one that the command runs on


async def test_inputs_are_embedded_alone_together_and_beside_generation(tmp_path: Path) -> None:
    load = Load(n_streams=2, n_prompt=5, max_tokens=40)
    options = ["--engine=reference", f"--socket={tmp_path / 's'}"]
    async with launch("layers=1,end_bias=-100", slots=2, ctx=128, options=options) as child:
        await child.ready()
        report = await measure_embeddings(tmp_path / "s", load, 20, 12)
    assert report.n_inputs == 20
    assert 20 <= report.n_tokens <= 240
    assert report.largest_difference < 1e-5
    assert min(report.ratio, report.itl_p95_ms, report.itl_p95_beside_ms) > 0
    assert report.beside_per_s > 0
    assert "20 inputs" in embedding_text(report)
