"""`runnerd serve`: the daemon itself, in the foreground."""

import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import typer

from runnerd.commands.failure import telling_the_service
from runnerd.commands.serve_settings import Settings, settings
from runnerd.commands.settings_source import SettingsSource
from runnerd.config import Config
from runnerd.device_env import device_env
from runnerd.systemd.environment import ServiceEnvironment, take_environment


@wraps(settings, assigned=("__annotations__",))  # for Typer to see the options
def serve(
    context: typer.Context,
    config_file: Path | None,
    fd: int | None,
    parent_fd: int | None,
    **_others: object,
) -> None:
    """Serve a model to all who connect.

    SIGTERM or Ctrl-C once: take no more requests, let running ones finish. Twice: end now.
    SIGHUP: read the settings file again; without one, and at a terminal, like one SIGTERM.
    SIGUSR1: log the state.

    Exit status: 0 told to stop, 64 usage, 65 model cannot be used, 66 no such model,
    70 internal error, 71 out of memory, 78 a setting is wrong.
    """
    is_child = fd is not None or parent_fd is not None
    with telling_the_service("" if is_child else os.environ.get("NOTIFY_SOCKET", "")):
        service = take_environment(is_child)
        if config_file is not None or service.is_managed:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which must not end what still starts
        source = SettingsSource(context, config_file, has_passed_sockets=bool(service.sockets))
        start = source.settings()
    raise typer.Exit(_run(start, service, source.reloader(start)))


def _run(
    settings: Settings, service: ServiceEnvironment, reload: Callable[[], Config] | None
) -> int:
    config = settings.config
    os.environ.update(device_env(config.engine.devices))  # read when the libraries load: now
    from runnerd import supervisor  # loads the whole daemon: only once the options are right
    from runnerd.commands.progress import LoadBar
    from runnerd.log import configure_logging
    from runnerd.native_log import NativeLogRelay

    output = configure_logging(settings.log_level, settings.log_format)
    with LoadBar() as bar:  # takes its copy of stderr before the relay replaces it
        relay = NativeLogRelay.start(output)

        def end_log() -> None:
            relay.stop()
            output.linger()

        try:
            return supervisor.start(
                config,
                service,
                settings.async_backend,
                relay.last_lines,
                bar.show,
                before_kill=end_log,
                reload=reload,
            )
        finally:
            end_log()
