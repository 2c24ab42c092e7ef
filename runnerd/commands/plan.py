"""`runnerd plan`: what a model would take of memory, and whether it fits, before it is loaded."""

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from runnerd.commands import model_options as options
from runnerd.commands.failure import USAGE, CommandFailed, connected, translated
from runnerd.commands.memory_text import memory_lines
from runnerd.commands.path_options import socket_option
from runnerd.config import Config, ImageLimits, check_settings
from runnerd.engine.base import KVType
from runnerd.harmless import harmless_json
from runnerd_protocol.messages import Memory

DOES_NOT_FIT = 71
ASKED_OF_A_DAEMON = ("socket", "json", "ctx", "slots", "kv_type", "gpu_layers")


def plan(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help=options.MODEL_HELP)] = None,
    socket: Annotated[Path | None, socket_option("Ask the daemon here about its model.")] = None,
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
    image_store_mib: options.ImageStoreMib = 512,
    image_cache_mib: options.ImageCacheMib = 256,
    checkpoint_mib: options.CheckpointMib = 256,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what a model takes of memory, by layer and by device, without loading it.

    Options are those of `runnerd serve`. With --socket a daemon tells of what it has loaded, or,
    given some of --ctx, --slots, --kv-type and --gpu-layers, of the same model with these.

    Exit status: 0 it fits, 71 it does not, 1 the daemon could not tell, 64 usage, 65 model cannot
    be used, 66 no such model, 69 nobody listens or the connection broke, 78 a setting is wrong.
    """
    if (socket is None) == (model is None):
        raise CommandFailed("give either MODEL or --socket", USAGE)
    if socket is not None:
        given = _given(context)
        memory = _ask(
            socket,
            n_ctx=ctx if "ctx" in given else None,
            n_slots=slots if "slots" in given else None,
            kv_type=kv_type if "kv_type" in given else None,
            n_gpu_layers=options.n_layers(gpu_layers),
        )
    else:
        config = Config(
            options.engine_config(context.params),
            checkpoint_mib=checkpoint_mib,
            images=ImageLimits(
                store_bytes=image_store_mib * 2**20, cache_bytes=image_cache_mib * 2**20
            ),
        )
        memory = _plan(config)
    with translated():
        _show(memory, json=json)
    raise typer.Exit(0 if memory.fits else DOES_NOT_FIT)


def _given(context: typer.Context) -> set[str]:
    """Return the options that were given, all of which a daemon can be asked for."""
    given = options.given_options(context)
    if others := sorted(given.difference(ASKED_OF_A_DAEMON)):
        raise CommandFailed(f"--{others[0].replace('_', '-')} does not go with --socket", USAGE)
    return given


def _ask(
    socket: Path,
    *,
    n_ctx: int | None,
    n_slots: int | None,
    kv_type: KVType | None,
    n_gpu_layers: int | None,
) -> Memory:
    async def run() -> Memory:
        async with connected(socket) as client:
            return await client.plan(
                n_ctx=n_ctx, n_slots=n_slots, kv_type=kv_type, n_gpu_layers=n_gpu_layers
            )

    with translated():
        return anyio.run(run)


def _plan(config: Config) -> Memory:
    check_settings(config)
    from runnerd.device_env import device_env
    from runnerd.engine import plan_engine  # loads the engine: only once the options are right
    from runnerd.log import configure_logging
    from runnerd.memory_report import memory_of

    os.environ.update(device_env(config.engine.devices))  # before a library looks at a device
    configure_logging("warning")
    return memory_of(plan_engine(config.engine), config)


def _show(memory: Memory, *, json: bool) -> None:
    if json:
        sys.stdout.write(harmless_json(msgspec.json.encode(memory)) + "\n")
    elif sys.stdout.isatty():
        from runnerd.commands.memory_table import memory_view
        from runnerd.commands.output import Output

        console = Output()
        console.print(memory_view(memory, console))
    else:
        sys.stdout.writelines(f"{line}\n" for line in memory_lines(memory))
    sys.stdout.flush()
