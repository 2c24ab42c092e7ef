"""Child processes that a test has started itself, not those that a session keeps for many."""

import psutil

_earlier: set[int] = set()


def forget_earlier() -> None:
    """Take the children that there are for somebody else's."""
    _earlier.clear()
    _earlier.update(child.pid for child in psutil.Process().children(recursive=True))


def own_children(*, recursive: bool = False) -> list[psutil.Process]:
    """Return the children that have come since."""
    found = psutil.Process().children(recursive=recursive)
    return [child for child in found if child.pid not in _earlier]
