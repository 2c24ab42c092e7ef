"""What the process that measures and the bare loop's process say to each other."""

from typing import Literal

from msgspec import Struct

from loadtest.recording import Load, Round


class RawOptions(Struct, frozen=True, kw_only=True):
    """A load, and how to make the context for it; as the options of `runnerd serve`."""

    model: str
    load: Load
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    kv: Literal["split", "unified"] = "split"
    flash_attn: Literal["auto", "on", "off"] = "auto"


class Ready(Struct, frozen=True, tag=True):
    """The first row could be decoded now."""


class Rounds(Struct, frozen=True, tag=True):
    """All rounds are done."""

    rounds: list[Round]
