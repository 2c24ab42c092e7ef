"""The options of `serve`, and the configuration that they say.

The parameters of `settings` are the options, and but for a few the keys of a settings file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import typer

from runnerd.commands import client_limits as clients
from runnerd.commands import model_options as options
from runnerd.commands.failure import USAGE, CommandFailed, telling_the_service
from runnerd.commands.path_options import socket_option
from runnerd.config import Config, ImageLimits

Value = str | int | float | bool | list[str]
"""What an option may be in a file."""
Kinds = Mapping[str, object]
"""Of each option the type, without `Annotated`."""
LogFormat = Literal["auto", "console", "json", "journal"]
"""As in `log_output`, which brings the log: slow."""
NOT_IN_FILE = {"context", "config_file", "fd", "parent_fd", "return"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What to serve, and what only the start of the process needs to know."""

    config: Config
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: LogFormat
    async_backend: Literal["asyncio", "trio"]


def _use_file(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        from runnerd.commands.settings_file import read_settings_file  # most have no file

        with telling_the_service(os.environ.get("NOTIFY_SOCKET", "")):
            context.default_map = dict(read_settings_file(path, kinds()))
    return path


def settings(
    context: typer.Context,
    model: options.Model,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A TOML file with these options; the command line wins. SIGHUP reads it again.",
            metavar="FILE",
            readable=False,  # as in `path_options`
            callback=_use_file,
            is_eager=True,
        ),
    ] = None,
    socket: Annotated[Path | None, socket_option("Listen at this path.")] = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    parent_fd: Annotated[int | None, typer.Option("--parent-fd", hidden=True)] = None,
    engine: options.EngineName = "llama",
    slots: options.Slots = 4,
    ctx: options.Ctx = 0,
    ctx_total: options.CtxTotal = 0,
    batch: options.Batch = 2048,
    ubatch: options.Ubatch = 512,
    threads: options.Threads = 0,
    kv: options.KV = "auto",
    flash_attn: options.FlashAttn = "auto",
    kv_type: options.KVTypeName = "f16",
    swa_full: options.SwaFull = False,
    gpu_layers: options.GPULayers = "auto",
    devices: options.Devices = "all",
    tensor_split: options.TensorSplit = "auto",
    reserve_mib: options.ReserveMib = 512,
    lora: options.Lora = None,
    embed_max: options.EmbedMax = 0,
    mmproj: options.Mmproj = "",
    image_rows: options.ImageRows = 0,
    image_max_mpx: Annotated[
        float,
        typer.Option(
            help="Size of an image, in millions of pixels.",
            metavar="MPX",
            rich_help_panel=options.IMAGES,
        ),
    ] = 32.0,
    image_store_mib: options.ImageStoreMib = 512,
    image_cache_mib: options.ImageCacheMib = 256,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait for a slot.")] = 512,
    target_itl_ms: Annotated[
        float,
        typer.Option(
            help="Gap between tokens that prompts must not push beyond;"
            " 0: eight times that without prompts, and 250 at most."
        ),
    ] = 0.0,
    checkpoint_mib: options.CheckpointMib = 256,
    drain: Annotated[
        float, typer.Option(help="Seconds for running requests when told to stop.", metavar="S")
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option(help="Seconds after which a step counts as stalled.", metavar="S")
    ] = 60.0,
    load_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds without a move after which the service manager may end a load.",
            metavar="S",
        ),
    ] = 300.0,
    allow_users: clients.AllowUsers = None,
    allow_groups: clients.AllowGroups = None,
    max_connections: clients.MaxConnections = 256,
    max_requests: clients.MaxRequests = 1024,
    outbox_kib: clients.OutboxKib = 64,
    handshake_timeout: clients.HandshakeTimeout = 10.0,
    frame_timeout: clients.FrameTimeout = 30.0,
    write_timeout: clients.WriteTimeout = 30.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")
    ] = "info",
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="How to log; auto: journal where stderr is that, JSON where it is no terminal."
        ),
    ] = "auto",
    async_backend: Annotated[
        Literal["asyncio", "trio"], typer.Option(help="The event loop.")
    ] = "asyncio",
) -> Settings:
    """Return the settings that the options say; what is out of range is left to `check_config`.

    Raises:
        CommandFailed: an option is not of the form that it must have.
        ConfigError: a user or a group is not known.
        ModelMissing: an alias for a model is not installed.
    """
    config = Config(
        options.engine_config(locals()),
        socket_path=None if socket is None else Path(socket),  # a file gives it as a text
        inherited_fd=fd,
        parent_fd=parent_fd,
        access=clients.access(allow_users, allow_groups),
        max_queue=max_queue,
        max_connections=max_connections,
        target_itl_ms=target_itl_ms,
        checkpoint_mib=checkpoint_mib,
        images=ImageLimits(
            n_pixels=_pixels(image_max_mpx),
            store_bytes=image_store_mib * 2**20,
            cache_bytes=image_cache_mib * 2**20,
        ),
        drain_s=drain,
        step_timeout_s=step_timeout,
        load_timeout_s=load_timeout,
        session=clients.session_limits(
            max_requests=max_requests,
            outbox_kib=outbox_kib,
            handshake_timeout=handshake_timeout,
            frame_timeout=frame_timeout,
            write_timeout=write_timeout,
        ),
    )
    return Settings(config, log_level, log_format, async_backend)


def _pixels(mpx: float) -> int:
    if not isfinite(mpx * 1e6):
        raise CommandFailed(f"--image-max-mpx {mpx} is no number of pixels", USAGE)
    return round(mpx * 1e6)


def kinds() -> Kinds:
    """Return the options that a file may give, and the type of each."""
    hints = get_type_hints(settings)
    return {name: kind for name, kind in hints.items() if name not in NOT_IN_FILE}
