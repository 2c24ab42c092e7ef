"""Why a daemon's process has ended, in words, and of what kind the cause is.

Its exit status says most, or the signal. What no status can say comes from beside it: whether it
was us who ended it, what it wrote last, in which phase of the load it was, and whether the kernel
has killed processes of its group for want of memory.
"""

import signal
from dataclasses import dataclass, field
from typing import Literal

from runnerd.streams import ClientError
from runnerd_protocol.messages import Memory

Cause = Literal[
    "stopped",  # it was told to, by us or by a signal, also if it had to be forced
    "stalled",  # we have killed it because nothing moved
    "cut_off",  # its connection was given up at our end, amid a message say
    "usage",
    "bad_model",
    "model_missing",
    "config",
    "out_of_memory",  # an allocation failed, and it said so
    "oom_killed",  # the kernel has killed it, and has counted that
    "killed",  # by a signal of others
    "aborted",  # by a check of its native code
    "bus_error",
    "crashed",
    "internal",  # our own bug
    "unknown",
]
Told = Literal["", "stop", "stall", "end"]
"""What we have ended a child for; "end": its connection could not be used any more."""

EXIT_CAUSES: dict[int, tuple[Cause, str]] = {
    0: ("stopped", "it was told to stop"),
    1: ("internal", "it did not get as far as to serve"),  # what Python exits with by itself
    64: ("usage", "it was started with options that it does not take"),
    65: ("bad_model", "the model cannot be used"),
    66: ("model_missing", "there is no such model"),
    70: ("internal", "internal error"),
    71: ("out_of_memory", "out of memory"),
    78: ("config", "a setting is wrong"),
}
FINAL: frozenset[Cause] = frozenset(
    {"stopped", "usage", "bad_model", "model_missing", "config"},
)
"""Causes after which there is no restart: it was meant to end, or would meet the same again."""

CRASH_SIGNALS = {"SIGSEGV", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"}
SHELL_SIGNAL = 128  # a shell exits with this and the number of the signal that ended its child


class StartFailed(ClientError):
    """There is no process: it could not be started."""


class RunnerStalled(ClientError):
    """The child lives, and nothing has moved for as long as `stall_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a child.

    `returncode` is negative for a signal. `sent` is the signal that we have ended it with, None if
    it has ended by itself. `summary` is the line of its stderr that tells most, `last_lines` are
    all that is kept. `phase` is of the load that it was in, empty outside of one. `memory` is what
    its last status has told of a load that ran out of memory.
    """

    pid: int
    returncode: int
    cause: Cause
    how: str
    summary: str = ""
    last_lines: tuple[str, ...] = field(default=(), repr=False)
    phase: str = ""
    memory: Memory | None = field(default=None, repr=False)
    sent: signal.Signals | None = None

    def __str__(self) -> str:
        """Return the whole of it in one line."""
        during = f", while it loaded the model ({self.phase})" if self.phase else ""
        summary = f": {self.summary}" if self.summary else ""
        needs = f"; {describe_memory(self.memory)}" if self.memory is not None else ""
        return f"{self.how}{during}{summary}{needs}"


class ChildDied(ClientError):
    """The child has ended; `death` says why."""

    def __init__(self, death: Death, message: str = "") -> None:
        self.death = death
        super().__init__(message or f"the daemon has ended: {death}")

    @property
    def cause(self) -> Cause:
        """Of what kind the cause is."""
        return self.death.cause

    @property
    def returncode(self) -> int:
        """The exit status, or minus the number of the signal."""
        return self.death.returncode

    @property
    def last_lines(self) -> list[str]:
        """What it wrote to stderr last."""
        return list(self.death.last_lines)

    @property
    def sent(self) -> signal.Signals | None:
        """The signal that we have ended it with."""
        return self.death.sent


class CrashLoop(ChildDied):
    """The child has died once more than its restart policy allows; `death` is the last one."""

    def __init__(self, death: Death, n_restarts: int, window_s: float) -> None:
        super().__init__(
            death,
            f"the daemon was restarted {n_restarts} times within {window_s:g} s, and has ended"
            f" again: {death}",
        )


def cause_of(
    returncode: int,
    sent: signal.Signals | None = None,
    told: Told = "",
    n_oom_kills: int | None = None,
    said: str = "",
) -> Cause:
    """Return what has ended a process that `said` something last.

    Of `n_oom_kills` in its group None says: not known.
    """
    if told == "stall":
        return "stalled"
    # What was sent SIGTERM and is ended by SIGKILL was killed by somebody else.
    if sent is not None and returncode in (-signal.SIGTERM, -sent, 70):
        return "cut_off" if told == "end" else "stopped"
    if told == "end" and returncode == 0:
        return "cut_off"
    name = _signal_name(returncode)
    if name is None:
        return EXIT_CAUSES.get(returncode, ("unknown", ""))[0]
    if name in CRASH_SIGNALS:
        return "crashed"
    if name == "SIGKILL" and n_oom_kills:
        return "oom_killed"
    if name == "SIGABRT" and "std::bad_alloc" in said:  # where native code does not expect it
        return "out_of_memory"
    by_name: dict[str, Cause] = {"SIGABRT": "aborted", "SIGBUS": "bus_error"}
    return by_name.get(name, "killed")


def describe_exit(
    returncode: int,
    sent: signal.Signals | None = None,
    told: Told = "",
    n_oom_kills: int | None = None,
    said: str = "",
) -> str:
    """Return in plain words how a process has ended; the arguments are those of `cause_of`."""
    name = _signal_name(returncode)
    outcome = name or f"exit status {returncode}"
    match cause_of(returncode, sent, told, n_oom_kills, said):
        case "stalled":
            return f"nothing moved, and it was killed ({outcome})"
        case "cut_off":
            return f"its connection was given up by its parent, and it has ended ({outcome})"
        case "stopped" if sent is not None and told != "stop":
            return f"it did not end by itself and was sent {sent.name} ({outcome})"
        case "stopped" if sent is not None and returncode:
            return f"it was told to stop, and had to be sent {sent.name} ({outcome})"
        case "crashed":
            return f"it crashed ({outcome})"
        case "out_of_memory":
            return f"out of memory ({outcome})"
        case "aborted":
            return f"a check in its native code failed, and it aborted ({outcome})"
        case "bus_error":
            return f"it crashed ({outcome}): a file that it reads was cut short, or a disk failed"
        case "oom_killed":
            return f"the system has killed it because memory ran out ({outcome})"
        case "killed":
            is_unclear = name == "SIGKILL" and n_oom_kills is None
            return f"it was killed by {name}{', perhaps because memory ran out' * is_unclear}"
        case _:
            return f"{EXIT_CAUSES.get(returncode, ('', 'unknown cause'))[1]} ({outcome})"


def describe_memory(memory: Memory) -> str:
    """Return in a few words what a model takes, what there is, and what would fit."""
    taken = memory.input_bytes
    for each in memory.devices:
        taken += each.weight_bytes + each.kv_bytes + each.compute_bytes
        taken += each.output_bytes + each.projector_bytes + each.host_bytes
    free = sum(each.free_bytes for each in memory.devices)
    words = f"it takes {_mib(taken)} with ctx {memory.n_ctx} x {memory.n_slots}"
    words += f", {_mib(free)} were free"
    if memory.failed is not None:
        size = f" of {_mib(memory.failed.n_bytes)}" if memory.failed.n_bytes else ""
        words += f"; there was no room for {memory.failed.what}{size}"
    return words + (f"; ctx {memory.n_ctx_fits} would fit" if memory.n_ctx_fits else "")


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"


def _signal_name(returncode: int) -> str | None:
    """Return the name of the signal that a process has ended by, None if it has not."""
    number = -returncode if returncode < 0 else returncode - SHELL_SIGNAL
    if number <= 0:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name; an exit status may be anything
        return f"signal {number}" if returncode < 0 else None
