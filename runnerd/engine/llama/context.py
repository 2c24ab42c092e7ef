"""A context: the KV cache of all slots, and forward passes over it.

The next position of a slot is always one after the last one stored; that, and every bound whose
breach ends the process, is checked before a call.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

import numpy as np
import numpy.typing as npt
import structlog

from runnerd.core.batch import Adapters, Span
from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.context_params import limits_of, make_context
from runnerd.engine.llama.library import (
    ABORTED,
    NO_ROOM,
    check_decode,
    lib,
    muted,
    quiet_load,
)
from runnerd.engine.llama.media_rows import MediaRows, first_position, past_media
from runnerd.engine.llama.micro_batches import arrange, level_cost
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.rows import RowArrays
from runnerd.engine.llama.shape import ContextShape
from runnerd.engine.llama.slots import SlotCells
from runnerd.errors import BadModel, DecodeAborted

log = structlog.get_logger()

Logits = npt.NDArray[np.float32]


class KeepsNoCells(BadModel):
    """The model has no KV cache: it reads a text as a whole, and generates none."""


class LlamaContext:
    """The KV cache of a model. One call at a time; free it before the model.

    `said` is llama.cpp's log of its making.
    """

    def __init__(
        self, model: LlamaModel, shape: ContextShape, config: EngineConfig, kv_bytes: int | None
    ) -> None:
        handle, self.said = make_context(model, shape, config, kv_bytes)
        self._handle = handle
        memory: int | None = lib.llama_get_memory(handle)
        if memory is None:
            lib.llama_free(handle)
            raise KeepsNoCells("the model keeps no KV cache")
        self.limits = limits_of(model, shape, config, handle, memory)
        self.cells = SlotCells(handle, memory, self.limits, has_axes=model.n_axes > 1)
        self.abort = AbortSwitch(handle)
        self._model = model
        self._adapters: Adapters = ()
        self._n_vocab = model.vocabulary.n_tokens
        self._n_threads = shape.n_threads
        self._level_cost = 0.0
        if config.flash_attn == "off" and kv_bytes is not None:
            n_bytes = model.description.size_bytes
            self._level_cost = level_cost(kv_bytes, self.limits.n_cells, n_bytes)
        self._rows = RowArrays(self.limits.n_batch, self._n_vocab, shape.n_slots)
        n_embd: int = lib.llama_model_n_embd_inp(model.handle)
        self._media = MediaRows(self.limits.n_batch, shape.n_slots, n_embd, model.n_axes)
        self._logits_at = 0
        self._logits: Logits = np.empty((0, self._n_vocab), np.float32)

    def decode(self, spans: Sequence[Span]) -> Logits:
        """Run one forward pass.

        Returns:
            Shape (n_outputs, n_vocab), a row per span with `wants_logits`, in order; valid
            until the next pass.

        Raises:
            NoKVSlot, DecodeAborted, EngineBroken: as `Engine.decode` says.
        """
        order = list(range(len(spans)))
        if len(spans) > 1 and not self.limits.is_unified:
            order = arrange(spans, self._level_cost)
        n_outputs = self._rows.fill([spans[index] for index in order])
        n_past = self.cells.n_past.copy()
        for span in spans:
            expected = n_past[span.slot_id]
            assert span.pos == expected, f"position {span.pos}, slot {span.slot_id} has {expected}"
            n_past[span.slot_id] += len(span.inputs)
        rows = self._run(spans, self._rows.batch, n_past, n_outputs)
        wanted = [index for index in order if spans[index].wants_logits]
        return rows if wanted == sorted(wanted) else rows[np.argsort(wanted)]

    def decode_media(self, spans: Sequence[Span]) -> Logits:
        """Run one forward pass over encoded rows; otherwise like `decode`."""
        batch, n_outputs = self._media.fill(spans)
        n_past = past_media(self.cells.n_past, spans)
        # Rows of an image at the same position: what was stored of it could not be told.
        whole = self.abort.detached(self._handle) if self._model.n_axes > 1 else nullcontext()
        with whole:
            return self._run(spans, batch, n_past, n_outputs)

    @contextmanager
    def without_causal_mask(self) -> Iterator[None]:
        """Let rows see those behind them for a `with` block; it holds for all that runs."""
        self._set_causal_mask(False)
        try:
            yield
        finally:
            self._set_causal_mask(True)

    def _set_causal_mask(self, wanted: bool) -> None:
        with muted():
            lib.llama_set_causal_attn(self._handle, wanted)

    def use_threads(self, n_threads: int) -> None:
        """Let decodes run with so many threads from now on."""
        if n_threads != self._n_threads:
            lib.llama_set_n_threads(self._handle, n_threads, n_threads)
            self._n_threads = n_threads

    def use_adapters(self, adapters: Adapters) -> None:
        """Let decodes run with these adapters from now on; a change costs the next one time."""
        if adapters != self._adapters:
            self._model.adapters.apply(self._handle, adapters)
            self._adapters = adapters

    def warm_up(self, token: int, reached: Callable[[float], None]) -> None:
        """Run the two shapes that every daemon meets first, and a shift; forget them.

        A shift has a graph of its own, the memory of which is to be missing now or never.
        `reached` is told the fraction that is done between passes, and may raise.
        """
        for fraction, n_slots in ((0.3, 1), (0.6, self.limits.n_slots)):
            self.cells.clear()
            self.decode([Span(slot, slot, 0, (token,), True) for slot in range(n_slots)])
            reached(fraction)
        if self.limits.can_shift:
            self.cells.shift(0, 0, None, 1)
            self.decode([Span(0, 0, 2, (token,), False)])
        self.cells.clear()

    def warm_up_wide(self, token: int, share: float) -> None:
        """Begin a pass as wide as there are, and forget it: its memory is to be missing now.

        It stops after that share of its nodes, where a device can stop: all layers of a kind
        use the same memory.
        """
        n_rows = min(self.limits.n_ubatch, self.limits.n_batch, self.limits.n_ctx - 1)
        span = Span(0, 0, 0, (token,) * n_rows, False)
        with self.abort.counting(self._handle) as n_nodes:
            self.decode([Span(0, 0, 0, (token,), False)])
        self.cells.clear()
        n_most = max(1, round(share * n_nodes()))
        with self.abort.counting(self._handle, n_most), suppress(DecodeAborted):
            self.decode([span])
        self.cells.clear()

    def _run(
        self, spans: Sequence[Span], batch: ctypes.Structure, n_past: list[int], n_outputs: int
    ) -> Logits:
        """Run a batch after which the slots have `n_past`."""
        with self._shifting() if self.cells.is_shifting else nullcontext():
            code: int = lib.llama_decode(self._handle, batch)
        self.cells.is_shifting = False
        if code == ABORTED:
            n_stored = self.cells.take_stock(spans)
            self._realign(spans)
            raise DecodeAborted(n_stored)
        if code == NO_ROOM:
            self._log_no_room(batch.n_tokens)
        check_decode(code)
        self.cells.n_past = n_past
        if n_outputs == 0:
            lib.llama_synchronize(self._handle)
            return self._logits[:0]
        return self._outputs(n_outputs)

    def _realign(self, spans: Sequence[Span]) -> None:
        """Let slots that a stopped batch has not come to go on behind their last cells.

        llama.cpp begins to look for free cells where it did in another slot: rows would be stored
        in any order, and a sum over them in another order is another one. A row that is taken back
        brings it to the first free cell, or leaves a gap of two at most. Where there are windows
        the row would take a cell that the next conversation may look back on.

        Source: llama_kv_cache::prepare, as it puts `v_heads` back; llama_kv_cache::find_slot.
        """
        if self.limits.is_unified or self.limits.needs_checkpoints or len(spans) == 1:
            return
        n_past = self.cells.n_past
        unreached = {
            span.slot_id: n_past[span.slot_id]
            for span in spans
            if n_past[span.slot_id] == first_position(span)
        }
        if not unreached:
            return
        self._rows.fill([Span(slot, slot, pos, (0,), False) for slot, pos in unreached.items()])
        with self.abort.detached(self._handle):
            check_decode(lib.llama_decode(self._handle, self._rows.batch))
        for slot_id, pos in unreached.items():
            self.cells.remove(slot_id, pos, None)

    @contextmanager
    def _shifting(self) -> Iterator[None]:
        """For a decode that begins with making the shifts asked for, with hundreds of debug lines.

        It is not to be stopped: what a shift was stopped at would be moved again by the next
        decode, and what it had moved by then twice.
        """
        with self.abort.detached(self._handle), quiet_load():
            yield

    def _log_no_room(self, n_rows: int) -> None:
        """Log what there is where llama.cpp finds no room: the ledger says there is some."""
        log.debug(
            "kv.no_slot",
            n_rows=n_rows,
            n_batch=self.limits.n_batch,
            n_cells=self.limits.n_cells,
            held=self.cells.held(),
        )

    def close(self) -> None:
        """Free the context."""
        lib.llama_free(self._handle)

    def _outputs(self, n_outputs: int) -> Logits:
        # Waits for the device, and puts rows that llama.cpp ran in another order back into ours.
        pointer = lib.llama_get_logits(self._handle)
        at = ctypes.addressof(pointer.contents)
        if at != self._logits_at:  # to wrap costs more than the rest of this method
            shape = (self.limits.n_slots, self._n_vocab)
            self._logits_at, self._logits = at, np.ctypeslib.as_array(pointer, shape)
        return self._logits[:n_outputs]
