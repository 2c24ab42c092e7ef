"""The tests' own event loop, the daemons choose theirs; and the daemons that tests share."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.examples import Examples, examples
from tests.e2e.systemd_lab import Lab, Units, booted
from tests.engine.adapter_files import lora

ADAPTERS = ("verse", "prose")

# One thread: two would wait for each other on a machine that has other things to do. Without
# flash attention a prompt's cut into passes does not change the last bits of its logits.
EXACT = ("--threads", "1", "--flash-attn", "off")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def daemon_for_examples() -> Iterator[Examples]:
    """A daemon on the reference engine, asked by plain calls."""
    with examples() as shared:
        yield shared


def _llama(*options: str) -> Iterator[DaemonProcess]:
    with start_blocking_portal() as portal:
        daemon = start_daemon_process("smollm2", *EXACT, *options, engine="llama")
        with portal.wrap_async_context_manager(daemon) as process:
            yield process


@pytest.fixture(scope="session")
def smollm2() -> Iterator[DaemonProcess]:
    """A daemon that runs the default model in four slots of 512 tokens."""
    yield from _llama("--slots", "4", "--ctx", "512", "--batch", "256")


@pytest.fixture(scope="session")
def smollm2_short() -> Iterator[DaemonProcess]:
    """The same with 256 cells for all four slots together."""
    yield from _llama("--slots", "4", "--ctx", "256", "--ctx-total", "256", "--batch", "128")


@pytest.fixture(scope="session")
def smollm2_with_adapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """The same with two adapters, "verse" and "prose"."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = [f"--lora={name}={lora(folder, seed=n)}" for n, name in enumerate(ADAPTERS, 1)]
    yield from _llama("--slots", "4", "--ctx", "256", "--batch", "128", *adapters)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A systemd of our own, with the shipped units installed."""
    with booted() as lab:
        yield lab


@pytest.fixture
def units(lab: Lab) -> Iterator[Units]:
    """Make instances of the units, which end with the test."""
    units = Units(lab)
    yield units
    units.end()
