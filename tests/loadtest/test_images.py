"""Images: what is measured of a daemon that reads them, and which figures miss a bar."""

import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from loadtest.growth import Growth, Holding, growth, holding
from loadtest.images.measuring import Again, Beside, ImageLoad, image_bars, measure_images
from loadtest.images.requests import Answer, measure_media_step, pictures
from loadtest.images.setup import ImageSetup
from loadtest.images.text import image_text
from runnerd.client import RequestFailed
from runnerd.launcher import launch

BESIDE = Beside(
    itl_p50_ms=10.0,
    itl_p95_ms=20.0,
    itl_p95_beside_ms=90.0,
    media_step_ms=50.0,
    encode_ms=300.0,
    n_encoded=1,
)
AGAIN = Again(
    one_s=1.0,
    all_s=2.15,
    n_encoded=1,
    again=Answer(ttft_s=0.1, n_prompt=100, n_cached=95, prefill_ms=80.0),
    n_encoded_again=0,
    n_question=4,
)
GROWTH = Growth(bytes_per_request=1024.0, n_descriptors=0, n_threads=0, most_bytes=10**8)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the one that the command runs on


@dataclass(frozen=True)
class Seen:
    """Figures of a run, all at their limits."""

    beside: Beside = BESIDE
    again: Again = AGAIN
    growth: Growth = GROWTH

    @property
    def missed(self) -> list[str]:
        bars = image_bars(self.beside, self.again, self.growth)
        return [bar.name for bar in bars if not bar.is_met]


def test_figures_at_their_limits_meet_every_bar() -> None:
    assert Seen().missed == []


def test_gaps_beside_images_may_be_twice_as_long_and_one_media_step() -> None:
    beside = msgspec.structs.replace(BESIDE, itl_p95_beside_ms=90.1)
    assert Seen(beside=beside).missed == ["ITL p95 beside images, ms"]


def test_gaps_beside_no_images_prove_nothing() -> None:
    beside = msgspec.structs.replace(BESIDE, n_encoded=0)
    assert Seen(beside=beside).missed == ["images encoded beside text"]


def test_many_requests_with_one_image_may_take_twice_as_long_as_one_and_their_decodes() -> None:
    again = msgspec.structs.replace(AGAIN, all_s=2.16)
    assert Seen(again=again).missed == ["first tokens of 16 with one image, s"]


def test_an_image_that_was_encoded_twice_is_seen() -> None:
    again = msgspec.structs.replace(AGAIN, n_encoded=2, n_encoded_again=1)
    assert Seen(again=again).missed == [
        "times it was encoded for the 16",
        "times it was encoded again",
    ]


def test_an_image_that_was_evaluated_twice_is_seen() -> None:
    again = msgspec.structs.replace(
        AGAIN, again=Answer(0.1, n_prompt=100, n_cached=20, prefill_ms=80.0)
    )
    assert Seen(again=again).missed == ["inputs evaluated when asked again"]


def test_what_grows_is_seen() -> None:
    grown = Growth(bytes_per_request=1025.0, n_descriptors=1, n_threads=1, most_bytes=0)
    assert Seen(growth=grown).missed == [
        "memory per request, bytes",
        "more descriptors, by requests",
        "more threads, by requests",
    ]


def test_growth_is_the_slope_of_memory_over_requests() -> None:
    seen = [Holding(n, 5000 + 30 * n + (-1) ** (n // 10), 7, 3) for n in range(100, 200, 10)]
    grown = growth(seen)
    assert abs(grown.bytes_per_request - 30) < 0.1
    assert (grown.n_descriptors, grown.n_threads) == (0, 0)


def test_descriptors_that_are_left_open_are_growth() -> None:
    seen = [Holding(n, 0, n, 2 * n) for n in range(4)]
    assert (growth(seen).n_descriptors, growth(seen).n_threads) == (2, 4)


def test_a_process_holds_memory_descriptors_and_threads() -> None:
    held = holding(os.getpid(), 5)
    assert held.n_requests == 5
    assert held.n_bytes > 10**6
    assert min(held.n_descriptors, held.n_threads) >= 1


def test_no_two_pictures_are_alike() -> None:
    assert len(set(islice(pictures(2), 5000))) == 5000


@pytest.mark.anyio
async def test_a_daemon_that_reads_images_is_measured() -> None:
    setup = ImageSetup(
        model="layers=1,end_bias=-100,step_ms=1,encode_ms=1",
        options=["--engine=reference"],
        few_rows=["--engine=reference", "--image-rows=16"],
    )
    load = ImageLoad(side=64, max_tokens=60, n_rounds=1, n_requests=40, n_warm_up=10)
    told: list[str] = []
    outcome = await measure_images(setup, load, told.append)
    assert outcome.beside.n_encoded >= 1
    assert outcome.again.n_encoded == 1
    assert outcome.again.n_encoded_again == 0
    assert outcome.again.again.n_cached > 0
    assert outcome.growth.most_bytes > 0
    assert "0 of 50 images" in told
    assert "images encoded beside text" in image_text(outcome)


@pytest.mark.anyio
async def test_a_media_step_holds_neither_the_encoding_nor_the_steps_of_the_text() -> None:
    model = "layers=1,end_bias=-100,step_ms=300,encode_ms=1000"
    async with launch(model, slots=1, ctx=512, options=["--engine=reference"]) as child:
        await child.ready()
        before = await child.client.status()
        took_ms = await measure_media_step(child.client, next(pictures(64)))
        after = await child.client.status()
    assert after.n_images_encoded - before.n_images_encoded == 1
    assert after.n_steps - before.n_steps >= 4
    assert 550 < took_ms < 850  # two passes: of the image, and of the mark before it


def test_a_projector_that_is_not_there_is_one_line_and_status_1(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    nowhere = tmp_path / "nowhere.gguf"
    command = [sys.executable, "-m", "loadtest", "images", f"--model={nowhere}"]
    done = subprocess.run(
        [*command, f"--projector={nowhere}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=root,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "nowhere.gguf" in done.stderr


@pytest.mark.anyio
async def test_a_model_that_reads_no_images_is_told() -> None:
    setup = ImageSetup(model="layers=0,images=0", options=["--engine=reference"], few_rows=[])
    with pytest.raises(RequestFailed, match="image"):
        await measure_images(setup, ImageLoad(), lambda _: None)
