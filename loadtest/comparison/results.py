"""What a comparison gives: a tree that is written to `report.json`, and read again.

    Results
      machine, systems                    where, and which
      workloads: [WorkloadResult]         in the order they were asked for
        turns: [Turn]                     in the order they ran, A B A B
          figures, exchanges, usage
        summaries: {system: {figure: Spread}}
      verdicts: [Verdict]                 the bars

Figures go by name; `loadtest.comparison.figures.KNOWN` says what each is, its unit, and which way
is better.
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from loadtest.bars import Sign
from loadtest.comparison.exchange import Exchange, Setup, Usage

Outcome = Literal["met", "missed", "unknown"]


class Machine(Struct, frozen=True, kw_only=True):
    """Where it was measured."""

    cpu: str
    n_cores: int
    memory_bytes: int
    kernel: str
    python: str


class SystemSeen(Struct, kw_only=True):
    """A system under comparison. `commands` are those that it was started with, each once.

    `is_limit`: it serves nobody, but says what the model alone can do. `error` says why it could
    not be run at all; "" if it could.
    """

    name: str
    version: str = ""
    commands: list[list[str]] = []
    is_limit: bool = False
    error: str = ""


class Turn(Struct, kw_only=True):
    """One system, one workload, one round, in a process of its own.

    `exchanges` are without their tokens and texts; a limit has none. `idle` is what the process
    used before it was asked anything, `used` after all was answered. `error` says what went
    wrong, and the turn counts for nothing then; the failures of single requests are in their
    exchanges, too. `is_absent`: the system could not be run, and further turns were left out.
    """

    system: str
    n_round: int
    figures: dict[str, float] = {}
    exchanges: list[Exchange] = []
    idle: Usage | None = None
    used: Usage | None = None
    error: str = ""
    is_absent: bool = False


class Spread(Struct, frozen=True, kw_only=True):
    """What is typical of the turns of one system: of `n_turns` that gave the figure."""

    median: float
    least: float
    greatest: float
    n_turns: int


class WorkloadResult(Struct, kw_only=True):
    """All turns of a workload. `about` is a sentence or more on what it shows.

    `error` says why it was not run at all; "" if it was.
    """

    name: str
    about: str
    setup: Setup
    turns: list[Turn] = []
    summaries: dict[str, dict[str, Spread]] = {}
    error: str = ""

    def median(self, system: str, figure: str) -> float | None:
        """Return the median of a figure; None where nobody has measured it."""
        spread = self.summaries.get(system, {}).get(figure)
        return None if spread is None else spread.median


class Verdict(Struct, frozen=True, kw_only=True):
    """A bar, and whether it is met.

    `ours` is compared with `theirs`, the same figure of `against` (or another figure of our own);
    `value` is their ratio; without `theirs` it is `ours`. `value` has to be on the side of `limit`
    that `sign` says. "unknown": something was not measured, and `why` says what.
    """

    workload: str
    name: str
    against: str
    sign: Sign
    limit: float
    ours: float | None = None
    theirs: float | None = None
    value: float | None = None
    outcome: Outcome = "unknown"
    why: str = ""


class Results(Struct, kw_only=True):
    """A whole comparison. `command` is how to get it again; `started` an instant, ISO 8601."""

    command: list[str]
    started: str
    model: str
    n_rounds: int
    seed: int
    is_quick: bool
    machine: Machine
    systems: list[SystemSeen] = []
    workloads: list[WorkloadResult] = []
    verdicts: list[Verdict] = []

    def workload(self, name: str) -> WorkloadResult | None:
        """Return a workload's result by name, if it was run."""
        return next((each for each in self.workloads if each.name == name), None)


def encode(results: Results) -> bytes:
    """Return results as JSON."""
    return msgspec.json.format(msgspec.json.encode(results, enc_hook=_plain), indent=1)


def decode(report: bytes) -> Results:
    """Return what `encode` was given.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    return msgspec.json.decode(report, type=Results, dec_hook=_restored)


def _plain(value: object) -> object:
    """Return what JSON has for a path, the one kind of value that msgspec leaves to us."""
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no place for a {type(value).__name__} in a report")


def _restored(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no {kind.__name__} in a report")
