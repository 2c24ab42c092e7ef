"""Embeddings: a context of its own on the model's weights.

A context pools in one way for life. It is made when it is first asked for, because not everybody
asks, and freed before one that pools in another way is made: with the logits that llama.cpp
computes along, it takes memory. What is beyond a context's bounds would end the process, so it
is checked here, in Python.

An input must go through in one pass: llama.cpp pools what a pass holds, and would give the mean
of a part without an error.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import psutil

from runnerd.core.batch import Span
from runnerd.engine.base import EngineConfig, ModelInfo, Pooling, Vectors
from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.context_params import FLASH_ATTENTION
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.library import ABORTED, lib, quiet_load
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.rows import RowArrays
from runnerd.engine.llama.threads import Team
from runnerd.errors import DecodeAborted, EngineFailed

NONE, MEAN, CLS, LAST, RANK = range(5)  # llama_pooling_type
N_SEQS = 64  # inputs in a pass
# On the CPU flash attention takes another way from 64 rows on, one in which the other rows of a
# pass change a row's last bits, which quantised weights then blow up; so does attention without
# it, for any number of rows. With fewer an input has the same embedding whatever comes along with
# it, and more would not be any faster there.
CPU_ROWS = 63
F32_BYTES = 4


class Embedder:
    """Makes embeddings, one pass at a time. Close it before the model.

    `poolings` is empty for a model that ranks texts instead of embedding them.
    """

    def __init__(
        self,
        model: LlamaModel,
        header: GGUFHeader,
        config: EngineConfig,
        team: Team,
        *,
        is_encoder: bool,
    ) -> None:
        trained: int = lib.llama_model_n_ctx_train(model.handle)
        self.n_embed = min(config.n_embed or config.n_ubatch, trained)
        self._types = _pooling_types(header, is_encoder=is_encoder)
        self._model = model
        has_gpu = bool(model.placement.devices)
        self._flash_attn = FLASH_ATTENTION[config.flash_attn if has_gpu else "auto"]
        self._team = team
        # A recurrent state is kept for each input of a pass, however short it is.
        self._n_seqs = 1 if model.is_recurrent else N_SEQS
        # llama.cpp plans with rows in multiples of the inputs, and fails on the rest.
        self._n_rows = -(-self.n_embed // N_SEQS) * N_SEQS
        self._n_rows_together = self.n_embed if has_gpu else CPU_ROWS
        self._context: _EmbeddingContext | None = None
        self.abort = AbortSwitch()

    def describe(self, info: ModelInfo) -> ModelInfo:
        """Return a description of the model that tells of its embeddings."""
        return replace(
            info,
            n_embd=lib.llama_model_n_embd_out(self._model.handle),
            n_embed=self.n_embed,
            poolings=tuple(self._types),
            embed_suffix=_suffix(self._model.handle),
        )

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """Return an embedding per input, as `Engine.embed` says."""
        n_rows = sum(map(len, inputs))
        assert n_rows <= self.n_embed, f"{n_rows} tokens, at most {self.n_embed}"
        context = self._context_of(self._types[pooling])
        return np.concatenate([self._pass(context, each) for each in self._passes(inputs)])

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def _pass(self, context: "_EmbeddingContext", inputs: Sequence[Sequence[int]]) -> Vectors:
        n_rows = sum(map(len, inputs))
        while True:
            try:
                with self._team.passing("embed", n_rows, self.abort) as n_threads:
                    return context.embed(inputs, n_threads)
            except DecodeAborted:
                if self.abort.is_wanted:
                    raise  # else for the cores that it has not had: again, with fewer threads

    def _passes(self, inputs: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """Cut the inputs into what goes through together."""
        together: list[Sequence[int]] = []
        n_rows = 0
        for tokens in inputs:
            is_full = n_rows + len(tokens) > self._n_rows_together or len(together) == self._n_seqs
            if together and is_full:
                yield together
                together, n_rows = [], 0
            together.append(tokens)
            n_rows += len(tokens)
        yield together

    def _context_of(self, pooling_type: int) -> "_EmbeddingContext":
        if self._context is None or self._context.pooling_type != pooling_type:
            self.close()
            params = self._params(pooling_type)
            self._context = _EmbeddingContext(self._model, params, self.abort)
        return self._context

    def _params(self, pooling_type: int) -> ctypes.Structure:
        params: ctypes.Structure = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = self._n_rows
        params.n_seq_max = self._n_seqs
        params.flash_attn_type = self._flash_attn
        params.embeddings = True
        params.pooling_type = pooling_type
        params.kv_unified = True  # one run of cells, as inputs of any length go through together
        params.swa_full = True
        params.no_perf = True
        return params


class _EmbeddingContext:
    """A context that pools in one way."""

    def __init__(self, model: LlamaModel, params: ctypes.Structure, abort: AbortSwitch) -> None:
        self.pooling_type: int = params.pooling_type
        n_vocab, n_rows = model.vocabulary.n_tokens, params.n_ubatch
        self._n_embd: int = lib.llama_model_n_embd_out(model.handle)
        # Each row has its logits twice: as computed, and as handed out.
        n_bytes = 2 * n_rows * (n_vocab + self._n_embd) * F32_BYTES
        available: int = psutil.virtual_memory().available
        if n_bytes > available:
            raise EngineFailed(
                f"embeddings of up to {n_rows} tokens take {n_bytes} bytes of memory,"
                f" {available} are available"
            )
        with quiet_load() as errors:
            handle: int | None = lib.llama_init_from_model(model.handle, params)
        if handle is None:
            raise EngineFailed(f"no context for embeddings: {'; '.join(errors)}")
        abort.attach(handle)
        self._handle = handle
        self._memory: int | None = lib.llama_get_memory(handle)
        self._n_seqs = params.n_seq_max
        self._rows = RowArrays(n_rows, n_vocab, params.n_seq_max)

    def embed(self, inputs: Sequence[Sequence[int]], n_threads: int) -> Vectors:
        """Return an embedding per input, in one pass.

        Raises:
            DecodeAborted, EngineFailed: as `Engine.embed` says.
        """
        assert 0 < len(inputs) <= self._n_seqs, f"{len(inputs)} inputs, at most {self._n_seqs}"
        self._rows.fill([Span(i, i, 0, tuple(tokens)) for i, tokens in enumerate(inputs)])
        self._rows.want_all()
        lib.llama_set_n_threads(self._handle, n_threads, n_threads)
        code: int
        if self._memory is None:  # an encoder
            code = lib.llama_encode(self._handle, self._rows.batch)
        else:
            lib.llama_memory_clear(self._memory, False)
            code = lib.llama_decode(self._handle, self._rows.batch)
        if code == ABORTED:
            raise DecodeAborted(())
        if code != 0:
            raise EngineFailed(f"the pass for embeddings failed with code {code}")
        vectors = np.stack([self._embedding(seq_id) for seq_id in range(len(inputs))])
        if self._memory is not None and not np.isfinite(vectors).all():
            # Or what is no number in its cells, masked by a 0, is in those of the next pass.
            lib.llama_memory_clear(self._memory, True)
        return vectors

    def close(self) -> None:
        """Free the context."""
        lib.llama_free(self._handle)

    def _embedding(self, seq_id: int) -> Vectors:
        pointer = lib.llama_get_embeddings_seq(self._handle, seq_id)  # waits for the device
        assert pointer, f"no embedding of input {seq_id}"
        vector: Vectors = np.ctypeslib.as_array(pointer, (self._n_embd,))
        return vector.copy()  # the next pass overwrites it


def _pooling_types(header: GGUFHeader, *, is_encoder: bool) -> dict[Pooling, int]:
    """Return how the model can pool, as llama.cpp numbers it.

    A file that names no way is one for generation: there the mean is the custom. The first row
    of a causal model has seen nothing but itself.
    """
    types: dict[Pooling, int] = {"mean": MEAN, "last": LAST}
    if is_encoder:
        types["cls"] = CLS
    match header.number("pooling_type"):
        case None:
            return {"model": MEAN, **types}
        case (1 | 2 | 3) as trained:
            return {"model": trained, **types}
        case 0:
            return types
        case _:
            return {}


def _suffix(model: int) -> tuple[int, ...]:
    """Return the tokens that end an input: what the model was trained to see there.

    Source: llama-vocab.cpp, tokenize with add_special.
    """
    vocab = lib.llama_model_get_vocab(model)
    if lib.llama_vocab_get_add_sep(vocab):
        return (lib.llama_vocab_sep(vocab),)
    if lib.llama_vocab_get_add_eos(vocab):
        return (lib.llama_vocab_eos(vocab),)
    return ()
