"""`runnerd serve`: the daemon itself, in the foreground."""

from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import typer

from runnerd.commands.failure import USAGE, CommandFailed
from runnerd.config import Config, ImageLimits, check_config
from runnerd.engine.base import EngineConfig, KVType
from runnerd.models import resolve_model


def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A GGUF file, or the alias 'smollm2'; for the reference engine its options."
        ),
    ],
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Listen at this path.", metavar="PATH")
    ] = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    engine: Annotated[
        Literal["llama", "reference"], typer.Option(help="What runs the model.")
    ] = "llama",
    slots: Annotated[int, typer.Option(help="Requests that run at the same time.")] = 4,
    ctx: Annotated[
        int,
        typer.Option(
            help="Context of each request, in tokens; 0: as the model was trained, at most 4096."
        ),
    ] = 0,
    ctx_total: Annotated[
        int, typer.Option(help="Cells of the KV cache over all slots; 0: slots x ctx.")
    ] = 0,
    batch: Annotated[int, typer.Option(help="Tokens per step, over all requests.")] = 2048,
    ubatch: Annotated[int, typer.Option(help="Tokens per pass within a step.")] = 512,
    threads: Annotated[int, typer.Option(help="Threads; 0: one per core.")] = 0,
    kv: Annotated[
        Literal["auto", "split", "unified"],
        typer.Option(help="A part of the KV cache for each slot, or one for all."),
    ] = "auto",
    flash_attn: Annotated[
        Literal["auto", "on", "off"], typer.Option(help="Flash attention.")
    ] = "auto",
    kv_type: Annotated[
        KVType,
        typer.Option(
            help="Numbers of the KV cache. q8_0 takes half the memory, q4_0 a quarter; they need"
            " flash attention, and lose precision with each context shift, q4_0 a lot."
        ),
    ] = "f16",
    swa_full: Annotated[
        bool,
        typer.Option("--swa-full", help="Sliding-window layers keep every position: more memory."),
    ] = False,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            help="A LoRA adapter that requests may name; may be given again.", metavar="NAME=PATH"
        ),
    ] = None,
    embed_max: Annotated[
        int,
        typer.Option(
            help="Tokens of the longest input of an embedding; 0: as --ubatch. Each takes memory"
            " for two rows of logits, and generations wait for an input that has begun."
        ),
    ] = 0,
    mmproj: Annotated[
        str,
        typer.Option(
            help="The GGUF file of the projector with which the model reads images.",
            metavar="FILE",
        ),
    ] = "",
    image_rows: Annotated[
        int,
        typer.Option(
            help="Inputs that an image may take at most, where the projector takes any size; 0: as"
            " it was trained, and at most half of the context."
        ),
    ] = 0,
    image_max_mpx: Annotated[
        float, typer.Option(help="Size of an image, in millions of pixels.", metavar="MPX")
    ] = 32.0,
    image_store_mib: Annotated[
        int, typer.Option(help="Memory for files of images, over all clients.", metavar="MIB")
    ] = 512,
    image_cache_mib: Annotated[
        int, typer.Option(help="Memory for images that were encoded before.", metavar="MIB")
    ] = 256,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait for a slot.")] = 512,
    max_connections: Annotated[int, typer.Option(help="Clients at the same time.")] = 256,
    target_itl_ms: Annotated[
        float, typer.Option(help="Gap between tokens that prompts must not push beyond.")
    ] = 100.0,
    checkpoint_mib: Annotated[
        int,
        typer.Option(
            help="Memory for going back in models with sliding windows or a recurrent state.",
            metavar="MIB",
        ),
    ] = 256,
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
        EngineConfig(
            model=model if engine == "reference" else resolve_model(model),
            engine=engine,
            n_slots=slots,
            n_ctx=ctx,
            n_cells=ctx_total,
            n_batch=batch,
            n_ubatch=min(ubatch, batch),  # so that a small --batch is enough to say
            n_threads=threads,
            kv=kv,
            flash_attn=flash_attn,
            kv_type=kv_type,
            swa_full=swa_full,
            adapters=tuple(map(_adapter, lora or ())),
            n_embed=embed_max,
            mmproj=resolve_model(mmproj),
            n_image_rows=image_rows,
        ),
        socket_path=socket,
        inherited_fd=fd,
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


def _adapter(argument: str) -> tuple[str, str]:
    name, equals, path = argument.partition("=")
    if not equals:
        raise CommandFailed(f"--lora {argument} is not NAME=PATH", USAGE)
    return name, path


def _run(
    config: Config,
    log_level: str,
    log_format: Literal["auto", "console", "json"],
    async_backend: str,
) -> int:
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
