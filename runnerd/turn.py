"""Places in a line that is kept in order, though tasks start and end in any."""

import anyio
from anyio.lowlevel import checkpoint


class Turn:
    """Comes when all before it have passed, also where one gave up before its own turn.

    `has_passed` is set once it has ended; `before` is the one that had not when last looked at.
    """

    def __init__(self, before: "Turn | None" = None) -> None:
        self.before = before
        self.has_passed = anyio.Event()

    async def come(self) -> None:
        """Wait for it; who is cancelled by then does not go on, even if it has come."""
        while (before := self._waits_for()) is not None:
            await before.has_passed.wait()
        await checkpoint()

    def end(self) -> None:
        """Let the next one come, once those before have passed; a second call does nothing."""
        self._waits_for()  # holds no more of the line than it must
        self.has_passed.set()

    def _waits_for(self) -> "Turn | None":
        while self.before is not None and self.before.has_passed.is_set():
            self.before = self.before.before
        return self.before
