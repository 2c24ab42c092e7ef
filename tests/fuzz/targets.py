"""What is fuzzed, and how its inputs are changed and crossed."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from runnerd_protocol.messages import ClientMessage, DaemonMessage
from tests.fuzz import from_client, from_daemon, gguf, live
from tests.fuzz.mutator import cross, script_mutator

CORPUS = Path(__file__).parent / "corpus"

Run = Callable[[bytes], None]
Mutate = Callable[[bytes, int, int], bytes]
Cross = Callable[[bytes, bytes, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """Code that is given hostile bytes; what `open` gives raises for a fault and nothing else.

    `packages` are those whose lines count, `max_bytes` is the longest input.
    """

    name: str
    open: Callable[[], AbstractContextManager[Run]]
    mutate: Mutate
    cross: Cross
    packages: tuple[str, ...]
    max_bytes: int = 4096

    @property
    def folder(self) -> Path:
        """Where its corpus is, and where the inputs that fail are put."""
        return CORPUS / self.name

    @property
    def corpus(self) -> list[Path]:
        """The inputs that are kept, in order."""
        return sorted(self.folder.iterdir())


TARGETS = {
    target.name: target
    for target in (
        Target(
            "from_client",
            lambda: nullcontext(from_client.run),
            script_mutator(ClientMessage),
            cross,
            ("runnerd_protocol",),
        ),
        Target(
            "from_daemon",
            lambda: nullcontext(from_daemon.run),
            script_mutator(DaemonMessage),
            cross,
            ("runnerd_protocol",),
        ),
        Target(
            "live",
            live.opened,
            script_mutator(ClientMessage),
            cross,
            ("runnerd", "runnerd_protocol"),
        ),
        Target(
            "gguf",
            lambda: nullcontext(gguf.run),
            gguf.mutate,
            gguf.cross,
            ("runnerd.engine.llama",),
        ),
    )
}
