"""Why a daemon has no model, as those who watch it are told."""

from dataclasses import dataclass
from typing import Literal

from runnerd.engine.memory_plan import MemoryPlan
from runnerd.errors import (
    BadModel,
    ConfigError,
    Details,
    EngineBroken,
    LoadError,
    ModelMissing,
    OutOfMemory,
)

FailureCode = Literal["out_of_memory", "bad_model", "model_missing", "config", "internal"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in words; `memory` is what was wanted, where there was too little."""

    code: FailureCode
    text: str
    memory: MemoryPlan | None = None

    @property
    def details(self) -> Details:
        """The numbers, for those whose requests waited for the model."""
        plan, facts = self.memory, Details(cause=self.code)
        if plan is None:
            return facts
        main = plan.devices[0].device
        facts |= {
            "needed_bytes": plan.needed_bytes,
            "free_bytes": main.free_bytes,
            "n_ctx": plan.n_ctx,
            "n_ctx_fits": plan.n_ctx_fits,
        }
        if plan.failed is not None:
            facts |= {
                "failed": plan.failed.what,
                "failed_device": plan.failed.device,
                "failed_bytes": plan.failed.n_bytes,
            }
        return facts


def failure_of(err: Exception) -> Failure:
    """Return what is told of an error that has ended a load, or the engine."""
    match err:
        case OutOfMemory():
            plan = err.plan if isinstance(err.plan, MemoryPlan) else None
            return Failure("out_of_memory", str(err), plan)
        case ModelMissing():
            return Failure("model_missing", str(err))
        case BadModel():
            return Failure("bad_model", str(err))
        case ConfigError():
            return Failure("config", str(err))
        case LoadError() | EngineBroken():
            return Failure("internal", str(err))
        case _:
            return Failure("internal", "an internal error")  # the log has its traceback
