"""Engines: what loads a model and runs steps."""

from runnerd.engine.base import Engine, EngineConfig, LoadProgress
from runnerd.engine.memory_plan import MemoryPlan


def open_engine(config: EngineConfig, progress: LoadProgress) -> Engine:
    """Load the engine that the configuration names.

    Raises:
        LoadError: it cannot be loaded, or `progress` said to stop.
        ConfigError: its options make no sense.
    """
    if config.engine == "reference":
        from runnerd.engine.reference import ReferenceEngine, parse_options

        return ReferenceEngine(config, parse_options(config.model), progress)
    from runnerd.engine.llama.load import load_llama  # 0.4 s, and optional

    return load_llama(config, progress)


def plan_engine(config: EngineConfig) -> MemoryPlan:
    """Plan what the engine that the configuration names would take of memory.

    Nothing big is allocated. The process is left with what the engine's libraries load.

    Raises:
        LoadError: it could not be loaded.
        ConfigError: its options make no sense.
    """
    if config.engine == "reference":
        from runnerd.engine.reference import parse_options
        from runnerd.engine.reference.plan import plan_reference

        return plan_reference(config, parse_options(config.model))
    from runnerd.engine.llama.plan import plan_llama

    return plan_llama(config)
