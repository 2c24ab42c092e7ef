"""The daemon's settings, checked before anything loads."""

import os
import stat
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from runnerd.engine.base import MAX_SLOTS, EngineConfig
from runnerd.engine.device import CPU_ID
from runnerd.errors import ConfigError
from runnerd.peers import Access

MAX_ADAPTERS = 64  # each takes memory, and a request may name 16
MAX_NAME_CHARS = 256  # that a request may write
LAST_DELTA_BYTES = 2**16  # what one may take on top of those that wait
MAX_LAYERS = 2**16  # more than any model has: "all of them", as people say it


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one connection may do. Times in seconds.

    `outbox_bytes` of text may wait for a request before its sequence is paused. With more than
    `intake_bytes` of requests in preparation it is not read on.
    """

    max_frame_bytes: int = 16 * 2**20
    max_requests: int = 1024
    max_subscriptions: int = 16
    max_plans: int = 4
    intake_bytes: int = 32 * 2**20
    outbox_bytes: int = 64 * 2**10
    handshake_timeout_s: float = 10.0
    frame_timeout_s: float = 30.0
    media_timeout_s: float = 30.0
    write_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What images may take, over all connections.

    `n_pixels` of one image, `store_bytes` of files, `pixel_bytes` of decoded ones,
    `cache_bytes` of encoded ones. What requests in progress need of files is never thrown out,
    and where it would be more than the limit, or half of it for one connection, further requests
    are refused.
    """

    n_pixels: int = 32_000_000
    store_bytes: int = 512 * 2**20
    pixel_bytes: int = 128 * 2**20
    cache_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Config:
    """What to serve, where, to whom, and for how many.

    `socket_path` is listened on; `inherited_fd` is a connected socket from a parent, and the
    daemon ends with it. `parent_fd` is a pidfd of the parent, and the daemon ends with it, too.
    `has_passed_sockets`: there are listening sockets from a service manager. A load that has not
    moved for `load_timeout_s` need not be waited for. `target_itl_ms` 0: chosen by what steps take.
    """

    engine: EngineConfig
    socket_path: Path | None = None
    inherited_fd: int | None = None
    parent_fd: int | None = None
    has_passed_sockets: bool = False
    access: Access = field(default_factory=Access)
    max_queue: int = 512
    max_connections: int = 256
    target_itl_ms: float = 0.0
    checkpoint_mib: int = 256
    images: ImageLimits = field(default_factory=ImageLimits)
    drain_s: float = 30.0
    step_timeout_s: float = 60.0
    load_timeout_s: float = 300.0
    session: SessionLimits = field(default_factory=SessionLimits)


def check_config(config: Config) -> None:
    """Refuse settings that cannot work, naming each with its value and limit.

    Raises:
        ConfigError: a setting is out of range, or contradicts another.
    """
    check_settings(config)
    if (config.socket_path, config.inherited_fd) == (None, None) and not config.has_passed_sockets:
        raise ConfigError("nothing to serve on: give a socket path")
    if config.inherited_fd is not None:
        _check_socket(config.inherited_fd)


def check_settings(config: Config) -> None:
    """Refuse what `check_config` does, but for where to serve."""
    engine = config.engine
    _check_range("slots", engine.n_slots, 1, MAX_SLOTS)
    _check_range("ctx", engine.n_ctx, 0, 2**31 - 1)
    _check_range("batch", engine.n_batch, 1, 2**20)
    _check_range("ubatch", engine.n_ubatch, 1, engine.n_batch)
    _check_range("threads", engine.n_threads, 0, 4 * (os.cpu_count() or 1))
    _check_range("max-queue", config.max_queue, 0, 2**20)
    _check_range("max-connections", config.max_connections, 1, 2**16)
    _check_range("target-itl-ms", config.target_itl_ms, 0.0, 1e6)
    _check_range("checkpoint-mib", config.checkpoint_mib, 0, 2**20)
    _check_range("drain", config.drain_s, 0.0, 86400.0)
    _check_range("step-timeout", config.step_timeout_s, 0.1, 86400.0)
    _check_range("load-timeout", config.load_timeout_s, 0.1, 86400.0)
    _check_range("embed-max", engine.n_embed, 0, 2**20)
    _check_adapters(engine.adapters)
    _check_devices(engine)
    _check_images(engine, config.images)
    _check_session(config.session)
    if engine.n_batch < engine.n_slots:
        raise ConfigError(
            f"batch {engine.n_batch} is less than slots {engine.n_slots}:"
            " every generating sequence needs a row in each step"
        )
    if engine.kv_type != "f16" and engine.flash_attn == "off":
        raise ConfigError(f"kv-type {engine.kv_type} needs flash attention: flash-attn is off")
    if engine.n_ctx == 1:
        raise ConfigError("ctx 1 has no room for a prompt and a token")
    if engine.n_cells and engine.n_cells < max(engine.n_ctx, 2):
        raise ConfigError(
            f"ctx-total {engine.n_cells} is less than {max(engine.n_ctx, 2)}:"
            " not even one request would fit"
        )
    if engine.n_ctx and engine.n_cells > engine.n_slots * engine.n_ctx:
        raise ConfigError(
            f"ctx-total {engine.n_cells} is more than slots {engine.n_slots} x ctx {engine.n_ctx}"
            f" = {engine.n_slots * engine.n_ctx}: the rest could never be used"
        )


def _check_socket(fd: int) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError as err:
        raise ConfigError(f"fd {fd}: {err.strerror}") from err
    if not is_socket:
        raise ConfigError(f"fd {fd} is not a socket")


def _check_adapters(adapters: tuple[tuple[str, str], ...]) -> None:
    _check_range("number of lora adapters", len(adapters), 0, MAX_ADAPTERS)
    for name, path in adapters:
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise ConfigError(
                f"lora name {name!r} is not 1 to {MAX_NAME_CHARS} printable characters"
            )
        if not path or "\0" in path:
            raise ConfigError(f"lora {name} has no path")
    names = [name for name, _ in adapters]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"lora name {name!r} is given more than once")


def _check_devices(engine: EngineConfig) -> None:
    """Refuse what no device could satisfy; which there are, only the engine knows."""
    n_layers, shares, devices = engine.n_gpu_layers, engine.tensor_split, engine.devices
    if n_layers is not None:
        _check_range("gpu-layers", n_layers, 0, MAX_LAYERS)
    _check_range("reserve-mib", _in(2**20, engine.reserve_bytes), 0, 2**30)
    for share in shares:
        _check_range("a share of tensor-split", share, 0.0, 1e9)
    if shares and not sum(shares):
        raise ConfigError("tensor-split gives no device a share")
    if devices is None:
        return
    for each in devices:
        if not 1 <= len(each) <= MAX_NAME_CHARS or not each.isprintable() or each.isspace():
            raise ConfigError(
                f"device id {each!r} is not 1 to {MAX_NAME_CHARS} printable characters"
            )
        if devices.count(each) > 1:
            raise ConfigError(f"device id {each!r} is given more than once")
    others = [each for each in devices if each.lower() != CPU_ID]
    if n_layers and not others:
        raise ConfigError(f"gpu-layers {n_layers} with no devices to take them")
    if len(shares) > len(others):
        raise ConfigError(f"tensor-split has {len(shares)} shares for {len(others)} devices")


def _check_images(engine: EngineConfig, limits: ImageLimits) -> None:
    _check_range("image-rows", engine.n_image_rows, 0, 2**16)
    _check_range("image-max-mpx", limits.n_pixels / 1e6, 0.001, 1000)
    _check_range("image-store-mib", _in(2**20, limits.store_bytes), 0.001, 2**20)
    _check_range("pixel_bytes", limits.pixel_bytes, 0, 2**40)
    _check_range("image-cache-mib", _in(2**20, limits.cache_bytes), 0, 2**20)
    if engine.mmproj and find_spec("PIL") is None:
        raise ConfigError("mmproj needs Pillow to read images: pip install 'runnerd[vision]'")
    if engine.n_image_rows and not engine.mmproj and engine.engine == "llama":
        raise ConfigError(f"image-rows {engine.n_image_rows} needs mmproj: the projector's file")


def _check_session(limits: SessionLimits) -> None:
    _check_range("max-requests", limits.max_requests, 1, 2**20)
    _check_range("max-subscriptions", limits.max_subscriptions, 1, 2**20)
    _check_range("max-plans", limits.max_plans, 1, 2**20)
    _check_range("intake", limits.intake_bytes, 1, 2**40)
    _check_range("max-frame", limits.max_frame_bytes, LAST_DELTA_BYTES + 2, 2**31 - 1)
    # Deltas that wait together go out as one frame, and the last of them may be a long one.
    n_most = (limits.max_frame_bytes - LAST_DELTA_BYTES) // 2
    _check_range("outbox-kib", _in(2**10, limits.outbox_bytes), 0.001, _in(2**10, n_most))
    _check_range("handshake-timeout", limits.handshake_timeout_s, 0.01, 86400.0)
    _check_range("frame-timeout", limits.frame_timeout_s, 0.01, 86400.0)
    _check_range("media-timeout", limits.media_timeout_s, 0.01, 86400.0)
    _check_range("write-timeout", limits.write_timeout_s, 0.01, 86400.0)


def _in(unit: int, n_bytes: int) -> float:
    """Return bytes in larger units, as they were said: a whole number where it is one."""
    return n_bytes // unit if n_bytes % unit == 0 else n_bytes / unit


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise ConfigError(f"{name} {value} is not between {low} and {high}")
