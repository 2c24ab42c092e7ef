"""The rows of a forward pass, in arrays that llama.cpp reads in place."""

import ctypes
from collections.abc import Sequence

import numpy as np

from runnerd.core.batch import Span
from runnerd.engine.llama.library import lib


class RowArrays:
    """A llama_batch over numpy arrays made once: to set its fields one by one costs 50 times more.

    Everything that would end the process is checked here, in Python.
    """

    def __init__(self, n_batch: int, n_vocab: int, n_slots: int) -> None:
        self._n_batch, self._n_vocab, self._n_slots = n_batch, n_vocab, n_slots
        self._token = np.zeros(n_batch, np.int32)
        self._pos = np.zeros(n_batch, np.int32)
        self._n_seq_id = np.ones(n_batch, np.int32)
        self._seq_id = np.zeros(n_batch, np.int32)
        self._logits = np.zeros(n_batch, np.int8)
        # llama.cpp wants a pointer per row to the row's slots; there is one slot each.
        first = self._seq_id.ctypes.data
        self._seq_id_at = np.arange(
            first, first + n_batch * self._seq_id.itemsize, self._seq_id.itemsize, dtype=np.uintp
        )
        int32, int8 = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int8)
        self.batch = lib.llama_batch(
            token=self._token.ctypes.data_as(int32),
            pos=self._pos.ctypes.data_as(int32),
            n_seq_id=self._n_seq_id.ctypes.data_as(int32),
            seq_id=self._seq_id_at.ctypes.data_as(ctypes.POINTER(int32)),
            logits=self._logits.ctypes.data_as(int8),
        )

    def fill(self, spans: Sequence[Span]) -> int:
        """Write token rows in span order; return how many of them give logits."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[bool] = []
        for span in spans:
            n_rows = len(span.inputs)
            assert n_rows > 0, f"sequence {span.seq_id} brings no rows"
            assert 0 <= span.slot_id < self._n_slots, f"slot {span.slot_id} of {self._n_slots}"
            tokens += span.inputs
            positions += range(span.pos, span.pos + n_rows)
            slots += (span.slot_id,) * n_rows
            outputs += (False,) * n_rows
            outputs[-1] = span.wants_logits
        n_rows, n_outputs = len(tokens), sum(outputs)
        assert 0 < n_rows <= self._n_batch, f"{n_rows} rows, a batch holds 1 to {self._n_batch}"
        # The context is made for an output per slot; one more would end the process.
        assert n_outputs <= self._n_slots, f"{n_outputs} outputs, at most {self._n_slots}"
        assert min(tokens) >= 0, f"token {min(tokens)}"
        assert max(tokens) < self._n_vocab, f"token {max(tokens)} of {self._n_vocab}"
        self._token[:n_rows] = tokens
        self._pos[:n_rows] = positions
        self._seq_id[:n_rows] = slots
        self._logits[:n_rows] = outputs
        self.batch.n_tokens = n_rows
        return n_outputs

    def want_all(self) -> None:
        """Let every row filled have an output: llama.cpp wants that of embeddings."""
        self._logits[: self.batch.n_tokens] = 1
