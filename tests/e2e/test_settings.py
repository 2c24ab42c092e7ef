"""A daemon with a settings file: from its start, and through a SIGHUP."""

import inspect
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runnerd.client import RequestFailed, connect
from runnerd.commands.serve_settings import kinds, settings
from runnerd.commands.settings_file import read_settings_file
from tests.daemon import PATIENCE_S
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.processes import run
from tests.settings import settings_of

EXAMPLE = Path(__file__).parents[2] / "systemd" / "example.toml"
# For tests and for the curious: nobody sets them for a service.
UNUSUAL = {"engine", "socket", "async_backend"}
SLOW = "layers=0,step_ms=5"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- the example -------------------------------------------------------------------------------


def test_the_example_is_good_and_says_no_more_than_the_model() -> None:
    config = settings_of(f"--config={EXAMPLE}", "--socket=s").config
    assert config == settings_of("/var/lib/runnerd/model.gguf", "--socket=s").config


def test_the_example_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    shown = tmp_path / "shown.toml"
    text = EXAMPLE.read_text()
    shown.write_text(re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    values = read_settings_file(shown, kinds())
    assert set(values) == set(kinds()) - UNUSUAL
    for name, value in values.items():
        default = inspect.signature(settings).parameters[name].default
        assert name == "model" or value == ([] if default is None else default), name
    # Each stands below a line about it, or below one that such a line is about, too.
    assert all(re.match(r"#|\w|$", line) for line in text.splitlines())
    assert not re.search(r"\n\n#?[a-z-]+ = ", text)


# --- the start ---------------------------------------------------------------------------------


def test_a_wrong_file_is_one_line_and_status_78(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    missing = run("serve", "--config", str(file))
    assert (missing.code, missing.out) == (78, "")
    assert missing.err == f"runnerd: {file}: cannot be read: No such file or directory\n"
    file.write_text('model = "layers=0"\nengine = "reference"\nsocket = "s"\nslots = 0\n')
    wrong = run("serve", "--config", str(file))
    assert (wrong.code, wrong.out) == (78, "")
    assert wrong.err == f"runnerd: {file}: slots 0 is not between 1 and 256\n"
    file.write_text('engine = "reference"\n')
    without = run("serve", "--config", str(file))
    assert (without.code, without.out) == (64, "")
    assert "Missing argument 'model'" in without.err


def test_a_service_manager_is_told_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, address = tmp_path / "a.toml", tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(address))
        notified.settimeout(PATIENCE_S)
        for text, words in (("slots = ''", 'slots = "" is not'), ("slots = 0", "slots 0 is not")):
            file.write_text(f"model = 'layers=0'\nengine = 'reference'\nsocket = 's'\n{text}\n")
            assert run("serve", "--config", str(file)).code == 78
            assert notified.recv(4096).startswith(f"STATUS=failed: {file}: {words}".encode())


# --- the reload --------------------------------------------------------------------------------


def events(daemon: DaemonProcess, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in daemon.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


async def reload(daemon: DaemonProcess, name: str) -> dict[str, object]:
    """Have the settings read again; return the event that says what has become of it."""
    n_before = len(events(daemon, name))
    daemon.signal(signal.SIGHUP)
    await daemon.until(lambda: len(events(daemon, name)) > n_before)
    return events(daemon, name)[-1]


@asynccontextmanager
async def daemon_of(file: Path, *options: str) -> AsyncIterator[DaemonProcess]:
    async with start_daemon_process(SLOW, f"--config={file}", *options) as daemon:
        yield daemon


@pytest.mark.anyio
async def test_a_reload_holds_for_the_next_request_and_harms_none_that_runs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("slots = 1\nmax-queue = 3\n")
    async with daemon_of(file, "--drain=7") as daemon, connect(daemon.path) as client:
        assert (await client.status()).max_queue == 3
        async with client.generate("x", max_tokens=100, temperature=0.0) as stream:
            await anext(stream)
            file.write_text(
                "slots = 2\nmax-queue = 0\ndrain = 9\nlog-level = 'debug'\nlog-format = 'json'\n"
            )
            said = await reload(daemon, "daemon.reloaded")
            assert (said["applied"], said["waiting"]) == (["max-queue"], ["slots"])
            (waits,) = events(daemon, "setting.waits_for_restart")
            assert waits["option"] == "log-format"
            status = await client.status()
            assert (status.max_queue, status.n_slots) == (0, 1)
            with pytest.raises(RequestFailed, match="the queue holds 0"):
                async with client.generate("y") as refused:
                    await anext(refused)
            assert (await stream.completion()).finished.n_generated == 100
        async with client.generate("x", max_tokens=5) as stream:
            assert (await stream.completion()).finished.n_generated == 5


@pytest.mark.anyio
async def test_a_broken_file_keeps_the_settings_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("max-queue = 3\nlog-level = 'info'\n")
    async with daemon_of(file) as daemon, connect(daemon.path) as client:
        for text, words in (
            ("max-queue = 'many'\nlog-level = 'error'\n", 'max-queue = "many" is not a whole'),
            ("max-queue = 1\nslots = 0\nlog-level = 'error'\n", "slots 0 is not between"),
            ("max-queue = ", "Invalid value"),
        ):
            file.write_text(text)
            said = await reload(daemon, "daemon.reload_failed")
            assert str(said["error"]).startswith(str(file))
            assert words in str(said["error"])
            assert (await client.status()).max_queue == 3
        file.unlink()
        assert "No such file" in str((await reload(daemon, "daemon.reload_failed"))["error"])
        file.write_text("max-queue = 1\n")
        said = await reload(daemon, "daemon.reloaded")  # at level info, as before
        assert said["applied"] == ["max-queue"]
        assert (await client.status()).max_queue == 1
