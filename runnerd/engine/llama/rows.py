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
        n_rows = sum(len(span.inputs) for span in spans)
        assert 0 < n_rows <= self._n_batch, f"{n_rows} rows, a batch holds 1 to {self._n_batch}"
        self._logits[:n_rows] = 0
        start = n_outputs = 0
        for span in spans:
            stop = start + len(span.inputs)
            assert 0 <= span.slot_id < self._n_slots, f"slot {span.slot_id} of {self._n_slots}"
            assert start < stop, f"sequence {span.seq_id} brings no rows"
            self._token[start:stop] = span.inputs
            self._pos[start:stop] = np.arange(span.pos, span.pos + stop - start)
            self._seq_id[start:stop] = span.slot_id
            if span.wants_logits:
                self._logits[stop - 1] = 1
                n_outputs += 1
            start = stop
        tokens = self._token[:n_rows]
        assert tokens.min() >= 0, f"token {tokens.min()}"
        assert tokens.max() < self._n_vocab, f"token {tokens.max()} of {self._n_vocab}"
        # The context is made for an output per slot; one more would end the process.
        assert n_outputs <= self._n_slots, f"{n_outputs} outputs, at most {self._n_slots}"
        self.batch.n_tokens = n_rows
        return n_outputs
