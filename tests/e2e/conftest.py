"""The tests' own event loop; the daemons choose theirs."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
