"""What the process that measures and the bare loop's process say to each other."""

from msgspec import Struct

from loadtest.streams.recording import Load, ModelSetup, Round


class RawRequest(Struct, frozen=True):
    """What to load, and what to do with it; the loop's only argument."""

    setup: ModelSetup
    load: Load


class Ready(Struct, frozen=True, tag=True):
    """The first row could be decoded now."""


class Rounds(Struct, frozen=True, tag=True):
    """All rounds are done."""

    rounds: list[Round]
