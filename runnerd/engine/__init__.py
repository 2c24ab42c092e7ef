"""Engines: what loads a model and runs steps."""

from runnerd.engine.base import Engine, EngineConfig, LoadProgress


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
