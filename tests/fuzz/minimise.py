"""The few inputs that take all the ways through the code that many of them take."""

import sys
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from tests.fuzz.targets import Target

MAX_KEPT = 16  # inputs of a target
MAX_KEPT_BYTES = 48 * 2**10  # of all of them

Way = tuple[str, int, int]  # a file, and two lines of it that were run one after the other
Trace = Callable[[FrameType, str, object], "Trace | None"]  # as sys.settrace takes it


class Ways:
    """Collects the ways through some packages, in all threads that start meanwhile."""

    def __init__(self, packages: Iterable[str]) -> None:
        self.taken: set[Way] = set()
        specs = [spec for name in packages if (spec := find_spec(name)) is not None]
        self._roots = tuple(
            root for spec in specs for root in spec.submodule_search_locations or ()
        )
        self._is_ours: dict[str, bool] = {}

    def __enter__(self) -> Self:
        self._before = sys.gettrace(), threading.gettrace()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        of_this_thread, of_new_threads = self._before
        sys.settrace(of_this_thread)
        threading.settrace(of_new_threads)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Trace | None:
        file = frame.f_code.co_filename
        if file not in self._is_ours:
            self._is_ours[file] = file.startswith(self._roots)
        if not self._is_ours[file]:
            return None
        before = frame.f_lineno

        def trace_line(frame: FrameType, event: str, arg: object) -> Trace | None:
            nonlocal before
            if event == "line":
                self.taken.add((file, before, frame.f_lineno))
                before = frame.f_lineno
            return trace_line

        return trace_line


def smallest_cover(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return inputs that together go wherever all of them go, or as far as the limits allow."""
    left: dict[bytes, set[Way]] = {}
    with Ways(target.packages) as ways, target.open() as run:
        for data in sorted(set(inputs), key=len):
            ways.taken.clear()
            run(data)
            left[data] = set(ways.taken)
    kept: list[bytes] = []
    while left and len(kept) < MAX_KEPT:
        best = max(left, key=lambda data: (len(left[data]), -len(data)))
        gained = left.pop(best)
        if not gained:
            break
        if len(best) + sum(map(len, kept)) > MAX_KEPT_BYTES:
            continue
        kept.append(best)
        for ways_left in left.values():
            ways_left.difference_update(gained)
    return kept


def replace_corpus(target: Target, inputs: Iterable[bytes]) -> None:
    """Put inputs in place of a target's corpus, but for those that have failed."""
    target.folder.mkdir(parents=True, exist_ok=True)
    for path in target.corpus:
        if path.name.isdigit():  # what libFuzzer writes is named after what is wrong
            path.unlink()
    for number, data in enumerate(inputs):
        Path(target.folder, f"{number:02}").write_bytes(data)
