"""Where the settings come from: the command line, below it the settings file, then the defaults."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import typer

from runnerd.commands.failure import CommandFailed
from runnerd.commands.model_options import given_options
from runnerd.commands.serve_settings import NOT_IN_FILE, Settings, Value, kinds, settings
from runnerd.config import Config, check_config
from runnerd.errors import ConfigError, LoadError


class SettingsSource:
    """A command line, as it was parsed, and the settings file that it names.

    `has_passed_sockets`: there are sockets to serve on that neither knows of.
    """

    def __init__(
        self, context: typer.Context, path: Path | None, *, has_passed_sockets: bool
    ) -> None:
        self._context = context
        self._path = path
        self._has_passed_sockets = has_passed_sockets

    def settings(self) -> Settings:
        """Return the settings, with the file as it was when the command line was parsed.

        Raises:
            ConfigError: a setting is wrong.
            CommandFailed: so is an option, and there is no file.
            LoadError: an alias for a model is not installed.
        """
        return self._settings(self._context.default_map or {})

    def reloader(self, start: Settings) -> Callable[[], Config] | None:
        """Return what reads the file again, and sets the log level; None if there is no file.

        What it calls raises ConfigError, and has changed nothing then. `start` are the settings
        from the start.
        """
        path = self._path
        if path is None:
            return None
        import structlog  # a daemon has it by now; most commands do without

        from runnerd.commands.settings_file import read_settings_file
        from runnerd.log import set_level

        log = structlog.get_logger()

        def reload() -> Config:
            try:
                now = self._settings(read_settings_file(path, kinds()))
            except (CommandFailed, LoadError) as err:
                raise ConfigError(str(err)) from err
            set_level(now.log_level)
            for option in ("log_format", "async_backend"):
                if getattr(now, option) != getattr(start, option):
                    log.warning("setting.waits_for_restart", option=option.replace("_", "-"))
            return now.config

        return reload

    def _settings(self, file: Mapping[str, Value]) -> Settings:
        values, path = dict(self._context.params), self._path
        given = given_options(self._context)
        for name, parameter in inspect.signature(settings).parameters.items():
            if name not in given | NOT_IN_FILE:
                values[name] = file.get(name, parameter.default)
        if path is None:
            return self._checked(settings(self._context, **values))
        from runnerd.commands.settings_file import anchored  # most have no file

        if values["model"] is inspect.Parameter.empty:
            raise ConfigError(f"{path}: model is missing, and so it is on the command line")
        for name in file.keys() - given:
            is_llama = values["engine"] == "llama"
            values[name] = anchored(name, file[name], path.parent, is_llama=is_llama)
        try:
            return self._checked(settings(self._context, **values))
        except (CommandFailed, ConfigError) as err:
            where = f"{path} and the command line" if given - NOT_IN_FILE else f"{path}"
            raise ConfigError(f"{where}: {err}") from err

    def _checked(self, settings: Settings) -> Settings:
        config = replace(settings.config, has_passed_sockets=self._has_passed_sockets)
        check_config(config)
        return replace(settings, config=config)
