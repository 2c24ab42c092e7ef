"""Faults on demand, so that a test can see what everybody else does about them."""

import threading
from collections.abc import Sequence

from runnerd.engine.reference.options import ReferenceOptions
from runnerd.errors import EngineBroken, EngineFailed, NoKVSlot


class Faults:
    """What is to go wrong. Safe from any thread.

    Decodes, and images encoded, are counted from 1, from the load on. `hanging` is set while a
    decode hangs, `encode_hanging` while encoding does.
    """

    def __init__(self, options: ReferenceOptions) -> None:
        self.hanging = threading.Event()
        self.encode_hanging = threading.Event()
        self._released = threading.Event()
        self._n_decodes = 0
        self._no_kv_slot = range(options.no_kv_at, options.no_kv_at + 1)
        self._broken_at = options.broken_at
        self._hang_at = options.hang_at
        self._nan_seq_ids = {options.nan_seq}
        self._n_encodes = 0
        self._fail_encode_at = options.fail_encode_at
        self._hang_encode_at = options.hang_encode_at
        self._aborted: tuple[int, int] | None = None

    def no_kv_slot(self, n_decodes: int = 1) -> None:
        """Let the next decodes find the KV cache full."""
        self._no_kv_slot = range(self._n_decodes + 1, self._n_decodes + 1 + n_decodes)

    def broken_at(self, nth_decode: int) -> None:
        """Break the engine in the nth decode, and in all after it."""
        self._broken_at = nth_decode

    def abort_after(self, n_chunks: int) -> None:
        """Stop the next decode once so many chunks of its rows are stored, if it has more."""
        self._aborted = (self._n_decodes + 1, n_chunks)

    def is_aborted(self, n_chunks: int) -> bool:
        """Whether the decode in progress is to stop after so many chunks."""
        return self._aborted == (self._n_decodes, n_chunks)

    def nan_for(self, seq_id: int) -> None:
        """Make the logits of a sequence NaN from now on."""
        self._nan_seq_ids.add(seq_id)

    def nan_rows(self, seq_ids: Sequence[int]) -> list[int]:
        """Return the rows whose logits are to be NaN, of the rows of these sequences."""
        return [row for row, seq_id in enumerate(seq_ids) if seq_id in self._nan_seq_ids]

    def hang(self) -> None:
        """Let the next decode hang until `release`."""
        self._released.clear()
        self._hang_at = self._n_decodes + 1

    def fail_encode(self) -> None:
        """Let the next image fail to be encoded."""
        self._fail_encode_at = self._n_encodes + 1

    def hang_encode(self) -> None:
        """Let the next image hang in the encoder until `release`."""
        self._released.clear()
        self._hang_encode_at = self._n_encodes + 1

    def release(self) -> None:
        """Let what hangs go on, or what was to hang."""
        self._released.set()

    def before_decode(self) -> None:
        """Count a decode, and fail it where it is to fail."""
        self._n_decodes += 1
        if self._n_decodes == self._hang_at:
            self.hanging.set()
            self._released.wait()
            self.hanging.clear()
        if 0 < self._broken_at <= self._n_decodes:
            raise EngineBroken(f"reference engine: decode {self._n_decodes} is to break")
        if self._n_decodes in self._no_kv_slot:
            raise NoKVSlot(f"reference engine: decode {self._n_decodes} is to find no room")

    def before_encode(self) -> None:
        """Count an image, and fail it where it is to fail."""
        self._n_encodes += 1
        if self._n_encodes == self._hang_encode_at:
            self.encode_hanging.set()
            self._released.wait()
            self.encode_hanging.clear()
        if self._n_encodes == self._fail_encode_at:
            raise EngineFailed(f"reference engine: image {self._n_encodes} is to fail")
