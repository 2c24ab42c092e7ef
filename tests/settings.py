"""The command line of `serve`, parsed as the command does it, up to where a daemon would start."""

from functools import wraps
from pathlib import Path

import typer

from runnerd.commands.serve_settings import Settings, settings
from runnerd.commands.settings_source import SettingsSource

_parsed: list[SettingsSource] = []


@wraps(settings, assigned=("__annotations__",))
def _note(context: typer.Context, config_file: Path | None, **_others: object) -> None:
    _parsed.append(SettingsSource(context, config_file, has_passed_sockets=False))


_app = typer.Typer(add_completion=False, rich_markup_mode=None)
_app.command()(_note)


def source_of(*arguments: str) -> SettingsSource:
    """Return where the settings of a command line come from."""
    _parsed.clear()
    _app(list(arguments), standalone_mode=False)
    return _parsed.pop()


def settings_of(*arguments: str) -> Settings:
    """Return the settings of a command line."""
    return source_of(*arguments).settings()
