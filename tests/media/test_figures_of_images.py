"""What a daemon tells of its images."""

import pytest

from runnerd.client import connect
from runnerd.commands.prometheus import prometheus_text
from tests.daemon import running_daemon
from tests.media.encode_engine import EncodeEngine, answer

pytestmark = pytest.mark.anyio


async def test_the_status_tells_what_images_came_and_what_they_cost() -> None:
    async with running_daemon("layers=1,encode_ms=20", load=EncodeEngine) as daemon:
        for text in ("one", "two"):
            await answer(daemon, text, 1)
        async with connect(daemon.path) as client:
            status = await client.status()
    assert (status.n_images, status.n_images_encoded) == (2, 1)
    assert status.image_cache_bytes > 0
    assert 0.02 <= status.encode_s < 10
    assert (status.n_images_decoded, status.image_store_bytes_in_use) == (1, 0)
    assert status.image_store_bytes > 100
    metrics = prometheus_text(status).splitlines()
    assert "runnerd_images_total 2" in metrics
    assert "runnerd_images_encoded_total 1" in metrics
    assert f"runnerd_image_cache_bytes {status.image_cache_bytes}" in metrics
    assert "runnerd_images_decoded_total 1" in metrics
    assert f"runnerd_image_store_bytes {status.image_store_bytes}" in metrics
    assert "runnerd_image_store_in_use_bytes 0" in metrics
    assert f"runnerd_encode_seconds_total {status.encode_s}" in metrics


@pytest.mark.parametrize("images", [0, 1])
async def test_the_model_tells_how_much_an_image_takes(images: int) -> None:
    async with running_daemon(f"layers=0,images={images}", n_batch=96) as daemon:
        async with connect(daemon.path) as client:
            model = await client.model()
        assert model.n_image_rows == daemon.engine.model.n_image_rows
        assert (model.n_image_rows > 0) == bool(images)
        assert (model.n_batch, model.n_ubatch) == (96, 96)
