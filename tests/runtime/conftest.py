"""Both backends for every test marked `anyio`, and both event loops of asyncio where it matters."""

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
