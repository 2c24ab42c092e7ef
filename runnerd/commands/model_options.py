"""The options that say what is loaded and how, as `serve` and `plan` share them.

An alias is an option's type and help; its default stands in the signature of the command, and
`engine_config` makes of the values what they say. What is out of range is left to `check_config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Literal

import msgspec
import typer

from runnerd.commands.failure import USAGE, CommandFailed
from runnerd.engine.base import EngineConfig, KVType
from runnerd.models import resolve_model

DEVICES = "Devices"  # panels of the help on a terminal
IMAGES = "Images"

MODEL_HELP = "A GGUF file, or the alias 'smollm2'; for the reference engine its options."

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
EngineName = Annotated[Literal["llama", "reference"], typer.Option(help="What runs the model.")]
Slots = Annotated[int, typer.Option(help="Requests that run at the same time.")]
Ctx = Annotated[
    int,
    typer.Option(
        help="Context of each request, in tokens; 0: as the model was trained, at most 4096, more"
        " on large devices."
    ),
]
CtxTotal = Annotated[
    int, typer.Option(help="Cells of the KV cache over all slots; 0: slots x ctx.")
]
Batch = Annotated[int, typer.Option(help="Tokens per step, over all requests.")]
Ubatch = Annotated[int, typer.Option(help="Tokens per pass within a step.")]
Threads = Annotated[
    int,
    typer.Option(
        help="Threads of a forward pass at most; 0: one per core. It has fewer while other"
        " processes want the cores."
    ),
]
KV = Annotated[
    Literal["auto", "split", "unified"],
    typer.Option(help="A part of the KV cache for each slot, or one for all."),
]
FlashAttn = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        help="Flash attention. Less memory; on an Intel CPU slow beside long contexts, so that auto"
        " is off there where the rest takes up to 512 MiB and no layers look back on a window."
    ),
]
KVTypeName = Annotated[
    KVType,
    typer.Option(
        help="Numbers of the KV cache. q8_0 takes half the memory, q4_0 a quarter; they need"
        " flash attention, and lose precision with each context shift, q4_0 a lot."
    ),
]
SwaFull = Annotated[
    bool,
    typer.Option("--swa-full", help="Sliding-window layers keep every position: more memory."),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        help="A LoRA adapter that requests may name; may be given again.", metavar="NAME=PATH"
    ),
]
EmbedMax = Annotated[
    int,
    typer.Option(
        help="Tokens of the longest input of an embedding; 0: as --ubatch. Each takes memory"
        " for two rows of logits, and generations wait for an input that has begun."
    ),
]
Mmproj = Annotated[
    str,
    typer.Option(
        help="The GGUF file of the projector with which the model reads images.",
        metavar="FILE",
        rich_help_panel=IMAGES,
    ),
]
ImageRows = Annotated[
    int,
    typer.Option(
        help="Inputs that an image may take at most, where the projector takes any size; 0: as"
        " it was trained, and at most half of the context.",
        rich_help_panel=IMAGES,
    ),
]
GPULayers = Annotated[
    str,
    typer.Option(
        help="Layers on devices other than the CPU, the output layer counts as one; auto: as"
        " many as fit.",
        metavar="N|auto",
        rich_help_panel=DEVICES,
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        help="The devices that may be used, by their ids as `runnerd plan` shows them; none: the"
        " CPU alone.",
        metavar="ID,...|all|none",
        rich_help_panel=DEVICES,
    ),
]
TensorSplit = Annotated[
    str,
    typer.Option(
        help="Shares of the layers, one for each device in order; auto: by what is free there.",
        metavar="A,B,...|auto",
        rich_help_panel=DEVICES,
    ),
]
ReserveMib = Annotated[
    int,
    typer.Option(
        help="Memory that is left free on each device but the CPU.",
        metavar="MIB",
        rich_help_panel=DEVICES,
    ),
]
CheckpointMib = Annotated[
    int,
    typer.Option(
        help="Memory for going back in models with sliding windows or a recurrent state.",
        metavar="MIB",
    ),
]
ImageStoreMib = Annotated[
    int,
    typer.Option(
        help="Memory for files of images, over all clients.", metavar="MIB", rich_help_panel=IMAGES
    ),
]
ImageCacheMib = Annotated[
    int,
    typer.Option(
        help="Memory for images that were encoded before.", metavar="MIB", rich_help_panel=IMAGES
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of which the engine's configuration is made, as Typer reads them."""

    model: str
    engine: Literal["llama", "reference"]
    slots: int
    ctx: int
    ctx_total: int
    batch: int
    ubatch: int
    threads: int
    kv: Literal["auto", "split", "unified"]
    flash_attn: Literal["auto", "on", "off"]
    kv_type: KVType
    swa_full: bool
    lora: list[str] | None
    embed_max: int
    mmproj: str
    image_rows: int
    gpu_layers: str
    devices: str
    tensor_split: str
    reserve_mib: int


def engine_config(options: Mapping[str, object]) -> EngineConfig:
    """Return the configuration that options say: `EngineOptions` by name, perhaps among others.

    Raises:
        CommandFailed: one is not of the form that it must have.
        ModelMissing: an alias for a model is not installed.
    """
    given = msgspec.convert(options, EngineOptions)
    return EngineConfig(
        model=given.model if given.engine == "reference" else resolve_model(given.model),
        engine=given.engine,
        n_slots=given.slots,
        n_ctx=given.ctx,
        n_cells=given.ctx_total,
        n_batch=given.batch,
        n_ubatch=min(given.ubatch, given.batch),  # so that a small --batch is enough to say
        n_threads=given.threads,
        kv=given.kv,
        flash_attn=given.flash_attn,
        kv_type=given.kv_type,
        swa_full=given.swa_full,
        adapters=tuple(map(_adapter, given.lora or ())),
        n_embed=given.embed_max,
        mmproj=resolve_model(given.mmproj),
        n_image_rows=given.image_rows,
        n_gpu_layers=n_layers(given.gpu_layers),
        devices=_device_ids(given.devices),
        tensor_split=_shares(given.tensor_split),
        reserve_bytes=given.reserve_mib * 2**20,
    )


def given_options(context: typer.Context) -> set[str]:
    """Return the options that stand on the command line; the others have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def n_layers(argument: str) -> int | None:
    """Return the value of --gpu-layers; None: auto."""
    if argument == "auto":
        return None
    try:
        return int(argument)
    except ValueError as err:
        raise CommandFailed(f"--gpu-layers {argument} is neither a number nor auto", USAGE) from err


def _adapter(argument: str) -> tuple[str, str]:
    name, equals, path = argument.partition("=")
    if not equals:
        raise CommandFailed(f"--lora {argument} is not NAME=PATH", USAGE)
    return name, path


def _device_ids(argument: str) -> tuple[str, ...] | None:
    if argument == "all":
        return None
    return () if argument == "none" else tuple(argument.split(","))


def _shares(argument: str) -> tuple[float, ...]:
    if argument == "auto":
        return ()
    try:
        shares = tuple(map(float, argument.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(map(isfinite, shares)):
        raise CommandFailed(f"--tensor-split {argument} is neither numbers nor auto", USAGE)
    return shares
