"""Structured logging: events with facts, all through one output.

Modules use `log = structlog.get_logger()`; `configure_logging` may run before or after that.
"""

import fcntl
import logging
import os
from typing import ClassVar

import structlog

from runnerd.errors import ConfigError
from runnerd.log_output import Fields, LogFormat, LogOutput

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class EventLogger(structlog.BoundLoggerBase):
    """`log.info("sequence.finished", seq_id=7)`: an event's name, and facts as keywords.

    The threshold is the class's, so that a change reaches the loggers that exist already.
    """

    threshold: ClassVar[int] = logging.INFO

    def debug(self, event: str, **fields: object) -> None:
        """Log what happens per step; costs next to nothing when it is off."""
        if self.threshold <= logging.DEBUG:
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a step of a lifecycle."""
        if self.threshold <= logging.INFO:
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log what is degraded but answered."""
        if self.threshold <= logging.WARNING:
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a bug or a lost request."""
        if self.threshold <= logging.ERROR:
            self._proxy_to_logger("error", event, **fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        if self.threshold <= logging.ERROR:
            self._proxy_to_logger("error", event, **{"exc_info": True, **fields})

    def critical(self, event: str, **fields: object) -> None:
        """Log what ends the process."""
        self._proxy_to_logger("critical", event, **fields)


class _Outlet:
    """What structlog calls at the end of its chain: passes events to the current output."""

    current: ClassVar[LogOutput | None] = None

    def emit(self, level: str, event: str, fields: Fields) -> None:
        if self.current is not None:
            self.current.emit(level, event, fields)

    debug = info = warning = error = critical = emit


class _StdlibHandler(logging.Handler):
    """Brings warnings and errors of other libraries (asyncio's, say) into the same log."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < EventLogger.threshold:
            return
        try:
            fields = {"logger": record.name, "text": record.getMessage()}
            if record.exc_info:
                fields["exception"] = logging.Formatter().formatException(record.exc_info)
        except Exception:  # the caller's arguments do not fit its message; logging's own answer
            self.handleError(record)
            return
        _Outlet().emit(record.levelname.lower(), "library.logged", fields)


_stdlib_handler = _StdlibHandler(logging.WARNING)


def configure_logging(level: str, log_format: LogFormat = "auto", fd: int = 2) -> LogOutput:
    """Send all logging to a copy of the descriptor, and return that output.

    The copy is what keeps the log apart from descriptor 2 once native lines are relayed.
    "auto": for people on a terminal, JSON elsewhere.

    Raises:
        ConfigError: there is no such level.
    """
    set_level(level)
    output = LogOutput(_duplicate(fd), log_format)
    previous, _Outlet.current = _Outlet.current, output
    if previous is not None:
        os.close(previous.writer.fd)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _to_outlet,
        ],
        wrapper_class=EventLogger,
        logger_factory=lambda *_: _Outlet(),
        cache_logger_on_first_use=True,
    )
    logging.getLogger().addHandler(_stdlib_handler)  # does nothing the second time
    return output


def set_level(level: str) -> None:
    """Change from which level on events are logged, at once and everywhere.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    EventLogger.threshold = LEVELS[level]


def _to_outlet(
    logger: object, method: str, event_dict: structlog.typing.EventDict
) -> tuple[tuple[str, str, Fields], dict[str, object]]:
    event = str(event_dict.pop("event"))
    return (method, event, event_dict), {}


def _duplicate(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:  # closed: nobody reads, and a later socket must not get that number
        null = os.open(os.devnull, os.O_WRONLY)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
