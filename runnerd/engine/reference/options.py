"""The reference engine's options, and their form on a command line: "layers=2,window=8"."""

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from runnerd.errors import ConfigError

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Millis = Annotated[int, Meta(ge=0, le=3_600_000)]


class LayerKind(Enum):
    """What a layer knows of earlier inputs."""

    RECURRENT = "one state, made of all of them"
    SLIDING = "those less than the window behind"
    FULL = "all of them"


class ReferenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is like, how slow it is, and which faults it has.

    `layers` 0: logits come from the last input and its position alone, a step costs next to
    nothing, and no end token is ever generated.
    `window`: in all layers but the last `full_layers` a row sees positions less than this far
    behind it; 0: all of them. Those layers forget what is more than `spare` positions beyond
    the window, unless the configuration says `swa_full`.
    `recurrent`: the first layer has a state instead of attention.
    `cells`: of the KV cache over all slots, where the configuration does not say; 0: enough.
    `non_causal` off: the rows of an image see only what is before them.
    `images` off: the model reads none but those that are named.
    `patch`: pixels of a row, in width and height; larger where an image would have too many rows.
    `tiles`: an image is cut into so many groups, with a token between them.
    `mrope`: an image takes as many positions as the longer side of its grid, and nothing shifts.
    `end_bias`: added to the logits of the end tokens, where there are layers.
    `step_ms`, `load_ms`, `encode_ms`: a decode, the load, and encoding an image take at least
    so long.
    `broken_at`, `hang_at`, `no_kv_at`: the decode, counted from 1, that fails; 0: none.
    `fail_encode_at`, `hang_encode_at`: the image encoded, counted from 1, that fails; 0: none.
    `nan_seq`: the `seq_id` whose logits are NaN; -1: none.
    """

    layers: Annotated[int, Meta(ge=0, le=16)] = 2
    dim: Annotated[int, Meta(ge=2, le=512)] = 32
    heads: Annotated[int, Meta(ge=1, le=64)] = 4
    seed: Count = 0
    window: Count = 0
    full_layers: Annotated[int, Meta(ge=0, le=16)] = 1
    spare: Count = 0
    recurrent: bool = False
    shift: bool = True
    cells: Count = 0
    non_causal: bool = True
    images: bool = True
    patch: Annotated[int, Meta(ge=1, le=4096)] = 16
    tiles: Annotated[int, Meta(ge=1, le=16)] = 1
    mrope: bool = False
    end_bias: Annotated[int, Meta(ge=-100, le=100)] = -3
    step_ms: Millis = 0
    load_ms: Millis = 0
    encode_ms: Millis = 0
    broken_at: Count = 0
    hang_at: Count = 0
    no_kv_at: Count = 0
    fail_encode_at: Count = 0
    hang_encode_at: Count = 0
    nan_seq: Annotated[int, Meta(ge=-1)] = -1
    fail_load: bool = False

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):  # a head turns its dimensions in pairs
            raise ConfigError(
                f"reference engine: dim={self.dim} must be a multiple of"
                f" 2 * heads = {2 * self.heads}"
            )
        if self.recurrent and not self.layers:
            raise ConfigError("reference engine: recurrent=1 takes a layer, there are layers=0")

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """What each layer is, from the first on."""
        n_recurrent = int(self.recurrent)
        n_attending = self.layers - n_recurrent
        n_full = min(self.full_layers, n_attending) if self.window else n_attending
        return (
            (LayerKind.RECURRENT,) * n_recurrent
            + (LayerKind.SLIDING,) * (n_attending - n_full)
            + (LayerKind.FULL,) * n_full
        )


def parse_options(text: str) -> ReferenceOptions:
    """Read "key=value,key=value"; booleans are 0 or 1; nothing at all gives the defaults.

    Raises:
        ConfigError: a key is unknown or given twice, or a value is not allowed.
    """
    values: dict[str, str] = {}
    known = ReferenceOptions.__struct_fields__
    for item in text.split(",") if text else ():
        key, equals, value = item.partition("=")
        if not equals or key not in known:
            raise ConfigError(
                f"reference engine: {item!r} is not an option; write key=value"
                f" with a key out of {', '.join(known)}"
            )
        if key in values:
            raise ConfigError(f"reference engine: {key} is given twice: {values[key]}, {value}")
        values[key] = value
    try:
        # Not strict: "2" is the number 2, and "0" and "1" are booleans.
        return msgspec.convert(values, ReferenceOptions, strict=False)
    except msgspec.ValidationError as err:
        reason, _, path = str(err).partition(" - at `$.")
        key = path.rstrip("`")
        raise ConfigError(f"reference engine: {key}={values[key]}: {reason}") from err
