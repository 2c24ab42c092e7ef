"""`runnerd serve`: the daemon itself, in the foreground."""

import os
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import typer

from runnerd.commands import model_options as options
from runnerd.commands.failure import USAGE, CommandFailed
from runnerd.config import Config, ImageLimits, check_config
from runnerd.device_env import device_env


def serve(
    model: options.Model,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Listen at this path.", metavar="PATH")
    ] = None,
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
        float, typer.Option(help="Size of an image, in millions of pixels.", metavar="MPX")
    ] = 32.0,
    image_store_mib: options.ImageStoreMib = 512,
    image_cache_mib: options.ImageCacheMib = 256,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait for a slot.")] = 512,
    max_connections: Annotated[int, typer.Option(help="Clients at the same time.")] = 256,
    target_itl_ms: Annotated[
        float, typer.Option(help="Gap between tokens that prompts must not push beyond.")
    ] = 100.0,
    checkpoint_mib: options.CheckpointMib = 256,
    drain: Annotated[
        float, typer.Option(help="Seconds for running requests when told to stop.", metavar="S")
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option(help="Seconds after which a step counts as stalled.", metavar="S")
    ] = 60.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")
    ] = "info",
    log_format: Annotated[
        Literal["auto", "console", "json"],
        typer.Option(help="How to log; auto: JSON where stderr is no terminal."),
    ] = "auto",
    async_backend: Annotated[
        Literal["asyncio", "trio"], typer.Option(help="The event loop.")
    ] = "asyncio",
) -> None:
    """Serve a model to all who connect.

    SIGTERM or Ctrl-C once: take no more requests, let running ones finish. Twice: end now.

    Exit status: 0 told to stop, 64 usage, 65 model cannot be used, 66 no such model,
    70 internal error, 71 out of memory, 78 a setting is wrong.
    """
    config = Config(
        options.engine_config(
            model,
            engine=engine,
            slots=slots,
            ctx=ctx,
            ctx_total=ctx_total,
            batch=batch,
            ubatch=ubatch,
            threads=threads,
            kv=kv,
            flash_attn=flash_attn,
            kv_type=kv_type,
            swa_full=swa_full,
            lora=lora,
            embed_max=embed_max,
            mmproj=mmproj,
            image_rows=image_rows,
            gpu_layers=gpu_layers,
            devices=devices,
            tensor_split=tensor_split,
            reserve_mib=reserve_mib,
        ),
        socket_path=socket,
        inherited_fd=fd,
        parent_fd=parent_fd,
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
    )
    check_config(config)
    raise typer.Exit(_run(config, log_level, log_format, async_backend))


def _pixels(mpx: float) -> int:
    if not isfinite(mpx):
        raise CommandFailed(f"--image-max-mpx {mpx} is no number of pixels", USAGE)
    return round(mpx * 1e6)


def _run(
    config: Config,
    log_level: str,
    log_format: Literal["auto", "console", "json"],
    async_backend: str,
) -> int:
    os.environ.update(device_env(config.engine.devices))  # read when the libraries load: now
    from runnerd import supervisor  # loads the whole daemon: only once the options are right
    from runnerd.commands.progress import LoadBar
    from runnerd.log import configure_logging
    from runnerd.native_log import NativeLogRelay

    output = configure_logging(log_level, log_format)
    with LoadBar() as bar:  # takes its copy of stderr before the relay replaces it
        relay = NativeLogRelay.start(output)
        try:
            return supervisor.start(
                config, async_backend, relay.last_lines, bar.show, before_kill=relay.stop
            )
        finally:
            relay.stop()
