"""The tests' own event loop; the daemon's is its own."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
