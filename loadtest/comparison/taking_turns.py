"""A turn: one system or limit, one workload, in a process of its own."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time

import anyio

from loadtest.comparison.exchange import Ask, Exchange, Peer, PeerUnavailable, Setup, StartPeer
from loadtest.comparison.figures import measure_exchanges
from loadtest.comparison.limits import Limit
from loadtest.comparison.peers.http import PeerFailed
from loadtest.comparison.results import SystemSeen, Turn
from loadtest.comparison.workloads import Workload
from loadtest.comparison.workloads.asking import Prompts, ask_one
from loadtest.console import first_of
from loadtest.streams.raw import RawFailed
from runnerd.client import ClientError

EXPECTED = (ClientError, OSError, PeerFailed, PeerUnavailable, RawFailed)
WARM_UP_SEED = 0  # no round has it
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done in a turn, and within which time."""

    workload: Workload
    setup: Setup
    n_round: int
    seed: int
    limit_s: float


Entrant = Callable[[Task, SystemSeen, Turn], Awaitable[None]]


def served_by(start: StartPeer) -> Entrant:
    """Return how a system takes turns."""
    return partial(_serve, start)


def measured_by(limit: Limit) -> Entrant:
    """Return how a limit takes turns."""
    return partial(_measure, limit)


async def take_turn(entrant: Entrant, seen: SystemSeen, task: Task) -> Turn:
    """Let a system or a limit take its turn; what goes wrong with it is in what is returned.

    `seen` is told what was run, and how.
    """
    turn = Turn(system=seen.name, n_round=task.n_round)
    try:
        with anyio.move_on_after(task.limit_s) as scope:
            await entrant(task, seen, turn)
        if scope.cancelled_caught:
            turn.error = f"not done within {task.limit_s:g} s"
    except* EXPECTED as group:
        err = first_of(group)
        turn.error = str(err) or type(err).__name__
        turn.is_absent = isinstance(err, PeerUnavailable)
        if turn.is_absent and not seen.commands:
            seen.error = turn.error
    return turn


async def _serve(start: StartPeer, task: Task, seen: SystemSeen, turn: Turn) -> None:
    async with start(task.setup) as peer:
        _note(seen, peer.command, peer.version)
        await _warm_up(peer)
        turn.idle = await peer.usage()
        client_cpu_s = process_time()
        exchanges = await task.workload.drive(peer, task.seed)
        client_cpu_s = process_time() - client_cpu_s
        turn.used = await peer.usage()
    turn.figures = measure_exchanges(exchanges, task.setup.n_slots)
    turn.figures |= task.workload.measure(exchanges)
    if turn.figures["n_generated"]:
        turn.figures["client_us"] = client_cpu_s * 1e6 / turn.figures["n_generated"]
    turn.error = _failures(exchanges)
    for each in exchanges:
        each.tokens, each.text = [], ""  # of no use to a report, and large
    turn.exchanges = exchanges


async def _measure(limit: Limit, task: Task, seen: SystemSeen, turn: Turn) -> None:
    assert task.workload.steady is not None, "a workload with limits says what to measure"
    measured = await limit(task.setup, task.workload.steady)
    _note(seen, measured.command, "")
    turn.figures = measured.figures


async def _warm_up(peer: Peer) -> None:
    prompt = await Prompts(peer, WARM_UP_SEED).new(WARM_UP_TOKENS)
    warm = await ask_one(peer, Ask(role="warm-up", prompt=prompt, max_tokens=WARM_UP_TOKENS))
    if warm.ended == "failed":
        raise PeerFailed(f"a first short request failed: {warm.error}")


def _note(seen: SystemSeen, command: Sequence[str], version: str) -> None:
    seen.version, seen.error = version or seen.version, ""
    if list(command) not in seen.commands:
        seen.commands.append(list(command))


def _failures(exchanges: Sequence[Exchange]) -> str:
    failed = [each for each in exchanges if each.ended == "failed"]
    if not failed:
        return ""
    return f"{len(failed)} of {len(exchanges)} requests failed: {failed[0].error}"
