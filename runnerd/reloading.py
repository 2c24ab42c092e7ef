"""Settings that are read again while the daemon runs: which hold at once, and which wait.

What bounds newcomers can change at any time; what the model was loaded with cannot. The
configuration of the runner is what holds now, and everybody looks there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace

from runnerd.config import Config, SessionLimits, check_settings
from runnerd.runner import Runner

# Options that are not called as their fields.
OPTIONS = {
    "n_slots": "slots",
    "n_ctx": "ctx",
    "n_cells": "ctx-total",
    "n_batch": "batch",
    "n_ubatch": "ubatch",
    "n_threads": "threads",
    "n_embed": "embed-max",
    "n_image_rows": "image-rows",
    "n_gpu_layers": "gpu-layers",
    "reserve_bytes": "reserve-mib",
    "adapters": "lora",
    "socket_path": "socket",
    "uids": "allow-users",
    "gids": "allow-groups",
    "n_pixels": "image-max-mpx",
    "store_bytes": "image-store-mib",
    "cache_bytes": "image-cache-mib",
    "outbox_bytes": "outbox-kib",
}


@dataclass(frozen=True, slots=True)
class Changes:
    """The options that differ: `applied` hold from now on, `waiting` only after a restart."""

    applied: tuple[str, ...]
    waiting: tuple[str, ...]


def apply(new: Config, runner: Runner) -> Changes:
    """Let the new settings hold as far as they can; nobody who is being served is cut off.

    Raises:
        ConfigError: they cannot be; nothing has changed.
    """
    old = runner.config
    now = _as_far_as_possible(old, new)
    check_settings(now)
    runner.reconfigure(now)
    return Changes(_differing(old, now), _differing(now, new))


def _as_far_as_possible(old: Config, new: Config) -> Config:
    """Return the old settings with those of the new ones that need no restart.

    What a connection may do is known to it from its beginning, so that is for new ones; but
    answers are cut to `max_frame_bytes` for all alike.
    """
    session: SessionLimits = replace(new.session, max_frame_bytes=old.session.max_frame_bytes)
    return replace(
        old,
        access=new.access,
        max_queue=new.max_queue,
        max_connections=new.max_connections,
        target_itl_ms=new.target_itl_ms,
        drain_s=new.drain_s,
        step_timeout_s=new.step_timeout_s,
        session=session,
    )


def _differing(one: Config, other: Config) -> tuple[str, ...]:
    others = dict(_options(other))
    return tuple(option for option, value in _options(one) if value != others[option])


def _options(settings: object) -> Iterator[tuple[str, object]]:
    """Yield each setting by the name of its option, or, where there is none, of its field."""
    assert is_dataclass(settings)
    for field in fields(settings):
        value: object = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _options(value)
        else:
            name = field.name.removesuffix("_s").replace("_", "-")
            yield OPTIONS.get(field.name, name), value
