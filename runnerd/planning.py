"""What the model takes of memory, or would take with other sizes, for those who ask a daemon.

What is loaded is known. All else is planned by a process of its own: llama.cpp may end the one
that it is in. There is one at a time, so that they do not take the machine from the steps.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from runnerd.errors import (
    ConfigError,
    InvalidRequest,
    LoadFailed,
    ModelMissing,
    Overloaded,
    RequestError,
    ShuttingDown,
    Unsupported,
)
from runnerd.memory_report import memory_of
from runnerd.plan_child import USAGE, PlanRefused, run_plan
from runnerd.plan_options import field_at_fault, overrides_of, plan_arguments, planned_config
from runnerd.runner import Runner
from runnerd_protocol.messages import Memory, Plan

RUNNERD = (sys.executable, "-P", "-m", "runnerd")
PLAN_S = 120.0  # for a process that takes a second, and ten beside steps, which go first
MAX_PLANS = 32  # in line


class Planning:
    """Answers what a model takes of memory, for all connections of a daemon."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._turn = anyio.Lock()
        self._n_plans = 0

    async def memory(self, asked: Plan) -> Memory:
        """Return the memory that the model takes; with sizes, or before it is there, a plan.

        Raises:
            RequestError: it cannot be planned.
        """
        overrides = overrides_of(asked)
        config = self._runner.config
        config = replace(config, engine=planned_config(config.engine, asked))
        known = None if overrides else self._loaded()
        if known is not None:
            return known
        async with self._in_turn():
            known = None if overrides else self._loaded()
            if known is not None:  # meanwhile
                return known
            try:
                return await run_plan([*RUNNERD, *plan_arguments(config)], PLAN_S)
            except PlanRefused as err:
                raise _refusal(err, overrides) from err

    def _loaded(self) -> Memory | None:
        engine = self._runner.engine
        return None if engine is None else memory_of(engine.memory, self._runner.config)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Wait for those who asked before."""
        if self._n_plans >= MAX_PLANS:
            raise Overloaded(
                f"{self._n_plans} plans are to be made, the limit is {MAX_PLANS}",
                n_plans=self._n_plans,
                max_plans=MAX_PLANS,
            )
        self._n_plans += 1
        try:
            async with self._turn:
                self._check_open()
                yield
        finally:
            self._n_plans -= 1

    def _check_open(self) -> None:
        failure = self._runner.failure
        if failure is not None:
            raise LoadFailed(f"there is no model: {failure.text}", **failure.details)
        if self._runner.is_stopping:
            raise ShuttingDown("the daemon is shutting down")


def _refusal(err: PlanRefused, overrides: dict[str, int | str]) -> RequestError:
    """Return what a client is told of a plan that was refused."""
    words = str(err)
    if err.code == ModelMissing.exit_code:
        return LoadFailed(words)
    if err.code in (USAGE, ConfigError.exit_code) and overrides:
        field = field_at_fault(overrides, words)
        return InvalidRequest(field, overrides[field], f"one that works ({words})")
    return Unsupported(words)
