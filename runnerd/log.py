"""Structured logging: events with facts, all through one output, and not too many of them.

Modules use `log = structlog.get_logger()`; `configure_logging` may run before or after that.
"""

import fcntl
import logging
import os
import sys
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import ClassVar

import anyio
import structlog

from runnerd.errors import ConfigError
from runnerd.log_limit import LIFE_CYCLE, TELL_S, LogLimits
from runnerd.log_lines import Fields
from runnerd.log_output import LogFormat, LogOutput
from runnerd.tracebacks import traceback_of

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

LIBRARY_EVENT = "library.logged"
LOST_EVENT = "log.failed"


class EventLogger(structlog.BoundLoggerBase):
    """`log.info("request.finished", request_id=7)`: an event's name, and facts as keywords.

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

    def _proxy_to_logger(
        self, method_name: str, event: str | None = None, *event_args: str, **event_kw: object
    ) -> None:
        """Log; where that cannot be, for want of memory say, that costs this line and no more."""
        try:
            super()._proxy_to_logger(method_name, event, *event_args, **event_kw)
        except Exception as err:
            _tell_lost(str(event), err)


class _Outlet:
    """What structlog calls at the end of its chain: passes events to the current output."""

    current: ClassVar[LogOutput | None] = None
    limits: ClassVar[LogLimits] = LogLimits()

    def emit(self, level: str, event: str, fields: Fields) -> None:
        if self.current is not None:
            _tell_suppressed(at_once=event.startswith(LIFE_CYCLE))
            n_bytes = self.current.emit(level, event, fields)
            self.limits.charge(level, event, n_bytes)

    debug = info = warning = error = critical = emit


class _StdlibHandler(logging.Handler):
    """Brings warnings and errors of other libraries (asyncio's, say) into the same log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        if record.levelno < EventLogger.threshold or not _admits(level, LIBRARY_EVENT):
            return
        try:
            fields = {"logger": record.name, "text": record.getMessage()}
            if record.exc_info:
                # What follows the first line may show the exception with its message.
                fields["text"] = fields["text"].partition("\n")[0]
                if record.exc_info[1] is not None:
                    fields["exception"] = traceback_of(record.exc_info[1])
        except Exception:  # the caller's arguments do not fit its message; logging's own answer
            self.handleError(record)
            return
        _Outlet().emit(level, LIBRARY_EVENT, fields)


_stdlib_handler = _StdlibHandler(logging.WARNING)


def configure_logging(level: str, log_format: LogFormat = "auto", fd: int = 2) -> LogOutput:
    """Send all logging to a copy of the descriptor, and return that output.

    The copy is what keeps the log apart from descriptor 2 once native lines are relayed.
    "auto": the journal if that is where the descriptor leads, for people on a terminal, JSON
    elsewhere.

    Raises:
        ConfigError: there is no such level.
    """
    set_level(level)
    _alarm()  # takes a descriptor, as long as there are some
    output = LogOutput(_duplicate(fd), log_format)
    previous, _Outlet.current = _Outlet.current, output
    _Outlet.limits = LogLimits()
    if previous is not None:
        previous.close()
    structlog.configure(
        processors=[
            _drop_what_is_too_much,
            structlog.contextvars.merge_contextvars,
            _show_exception,
            _to_outlet,
        ],
        wrapper_class=EventLogger,
        logger_factory=lambda *_: _Outlet(),
        cache_logger_on_first_use=True,
    )
    logging.getLogger().addHandler(_stdlib_handler)  # does nothing the second time
    if output.problem:
        _Outlet().emit("warning", "log.degraded", {"reason": output.problem})
    return output


async def tell_suppressed() -> None:
    """Tell of lines that were held back within a second or so, also if no other follows."""
    while True:
        await anyio.wait_readable(_alarm())
        with suppress(BlockingIOError):  # another daemon of this process was first
            os.eventfd_read(_alarm())
        await anyio.sleep(TELL_S)
        _tell_suppressed()


def set_level(level: str) -> None:
    """Change from which level on events are logged, at once and everywhere.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    EventLogger.threshold = LEVELS[level]


@cache
def _alarm() -> int:
    """Return what is readable once a line was held back, by whatever thread; never closed."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def _admits(level: str, event: str) -> bool:
    if _Outlet.limits.admits(level, event, monotonic()):
        return True
    os.eventfd_write(_alarm(), 1)
    return False


def _tell_lost(event: str, err: Exception) -> None:
    """Log that an event could not be, and by what error; where that fails too, count it."""
    output = _Outlet.current
    if output is None:
        return
    try:
        if _admits("error", LOST_EVENT):
            _Outlet().emit("error", LOST_EVENT, {"lost": event, "exception": traceback_of(err)})
    except Exception:
        output.writer.n_dropped += 1


def _tell_suppressed(*, at_once: bool = False) -> None:
    for each in _Outlet.limits.take_suppressed(monotonic(), at_once=at_once):
        if _Outlet.current is not None:
            fields = {"suppressed": each.event, "n_lines": each.n_lines}
            _Outlet.current.emit(each.level, "log.suppressed", fields)


def _drop_what_is_too_much(
    logger: object, method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if not _admits(method, str(event_dict["event"])):
        raise structlog.DropEvent
    return event_dict


def _show_exception(
    logger: object, method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    err = event_dict.pop("exc_info", None)
    if err is True:
        err = sys.exc_info()[1]
    if isinstance(err, BaseException):
        event_dict["exception"] = traceback_of(err)
    return event_dict


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
