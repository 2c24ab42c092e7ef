"""The reference engine: tokenizer, model, cache and samplers behind the `Engine` protocol."""

import threading
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import (
    Batch,
    BatchKind,
    Edit,
    KVRemove,
    KVShift,
    Limits,
    Sampled,
    SamplerClose,
    SamplerOpen,
)
from runnerd.core.prompt import Part, Prompt
from runnerd.engine.base import EngineConfig, LoadProgress, ModelInfo
from runnerd.engine.reference.cache import KVCache
from runnerd.engine.reference.faults import Faults
from runnerd.engine.reference.ledger import Placement
from runnerd.engine.reference.model import Model
from runnerd.engine.reference.options import ReferenceOptions
from runnerd.engine.reference.sampling import Sampler, sample_greedy
from runnerd.engine.reference.tokenizer import (
    BOS,
    CHAT_TEMPLATE,
    END_TOKENS,
    N_VOCAB,
    ByteTokenizer,
)
from runnerd.errors import BadModel, LoadCancelled

Floats = NDArray[np.float64]

N_CTX = 512  # where the configuration leaves it to the model
PHASES = ("open", "weights", "context", "warm-up")
N_FRACTIONS = 4  # progress reports within each phase of loading


class ReferenceEngine:
    """Implements `Engine`. `last_logits` are those of the rows that `decode` sampled last.

    Raises:
        BadModel: the options say that the load fails.
        LoadCancelled: `progress` returned False.
        OutOfMemory: the KV cache is larger than memory.
    """

    def __init__(
        self, config: EngineConfig, options: ReferenceOptions, progress: LoadProgress
    ) -> None:
        self.faults = Faults(options)
        self._options = options
        self._closed = threading.Event()
        self._load_phase("open", progress)
        if options.fail_load:
            raise BadModel("reference engine: the load is to fail (fail_load=1)")
        self._tokenizer = ByteTokenizer(non_causal=options.non_causal)
        self._limits = _limits(config, options)
        self._model = Model(options)
        self._load_phase("weights", progress)
        self._cache = KVCache(self._model, options, self._limits)
        self._samplers: dict[int, Sampler] = {}
        self.last_logits: Floats = np.empty((0, N_VOCAB))
        self._load_phase("context", progress)
        self._load_phase("warm-up", progress)

    @property
    def limits(self) -> Limits:
        """See `Engine.limits`."""
        return self._limits

    @property
    def model(self) -> ModelInfo:
        """See `Engine.model`. Any context length is as good as another."""
        return ModelInfo(
            name="reference",
            architecture="reference",
            n_vocab=N_VOCAB,
            n_ctx_train=self._limits.n_ctx,
            n_params=self._model.n_params,
            size_bytes=self._model.n_params * np.dtype(np.float64).itemsize,
            chat_template=CHAT_TEMPLATE,
            bos_token=BOS,
            end_tokens=END_TOKENS,
        )

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """See `Tokenizer.expand`; images are written as in `media`."""
        return self._tokenizer.expand(parts, add_bos=add_bos)

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._tokenizer.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """See `Tokenizer.is_end`."""
        return self._tokenizer.is_end(token)

    def apply(self, edits: Sequence[Edit]) -> None:
        """See `Engine.apply`. Opening a sampler twice, or closing one not open, is a bug."""
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    self._cache.remove(slot_id, p0, p1)
                case KVShift(slot_id, p0, p1, delta):
                    self._cache.shift(slot_id, p0, p1, delta)
                case SamplerOpen(seq_id, sampling, history):
                    assert seq_id not in self._samplers, f"sampler {seq_id} is open"
                    self._samplers[seq_id] = Sampler(sampling, history)
                case SamplerClose(seq_id):
                    assert seq_id in self._samplers, f"sampler {seq_id} is not open"
                    del self._samplers[seq_id]
                case _:
                    assert_never(edit)

    def decode(self, batch: Batch) -> tuple[Sampled, ...]:
        """See `Engine.decode`. A batch that breaks the contract is an AssertionError."""
        started_at = time.monotonic()
        assert not self._closed.is_set(), "the engine is closed"
        seq_ids = [span.seq_id for span in batch.spans if span.wants_logits]
        for seq_id in seq_ids:
            assert seq_id in self._samplers, f"sampler {seq_id} is not open"
        self.faults.before_decode()
        self.last_logits = self._logits(batch, self._cache.ledger.place(batch))
        for output, seq_id in enumerate(seq_ids):
            if self.faults.is_nan(seq_id):
                self.last_logits[output] = np.nan
        sampled = sample_greedy(self.last_logits)
        for output, seq_id in enumerate(seq_ids):
            sampler = self._samplers[seq_id]
            if not sampler.is_greedy:
                sampled[output] = sampler.sample(self.last_logits[output])
        if self._options.step_ms:
            self._closed.wait(started_at + self._options.step_ms / 1e3 - time.monotonic())
        return tuple(sampled)

    def close(self) -> None:
        """See `Engine.close`. A second call changes nothing; a decode that hangs goes on."""
        self._closed.set()
        self.faults.release()
        self._samplers.clear()

    def _logits(self, batch: Batch, placement: Placement) -> Floats:
        """Return the logits of the rows that want them."""
        last_rows = accumulate(len(span.inputs) for span in batch.spans)
        outputs = [
            row - 1 for row, span in zip(last_rows, batch.spans, strict=True) if span.wants_logits
        ]
        positions = np.array(placement.positions)[outputs]
        if batch.kind is BatchKind.TOKENS:
            tokens = np.array(placement.inputs)
            if not self._model.layers:
                return self._model.logits_of_tokens(tokens[outputs], positions)
            rows = self._model.embed(tokens)
        else:
            rows = np.concatenate([self._model.embed_media(span) for span in batch.spans])
        rows = self._cache.forward(batch, placement, rows)
        return self._model.logits(rows[outputs], positions)

    def _load_phase(self, phase: str, progress: LoadProgress) -> None:
        wait_s = self._options.load_ms / 1e3 / len(PHASES) / N_FRACTIONS
        for done in range(N_FRACTIONS + 1):
            if not progress(phase, done / N_FRACTIONS):
                raise LoadCancelled(f"reference engine: the load was stopped at {phase}")
            if wait_s and done < N_FRACTIONS:
                self._closed.wait(wait_s)


def _limits(config: EngineConfig, options: ReferenceOptions) -> Limits:
    n_ctx = config.n_ctx or N_CTX
    n_all = config.n_slots * n_ctx
    return Limits(
        n_slots=config.n_slots,
        n_ctx=n_ctx,
        n_cells=min(config.n_cells or options.cells or n_all, n_all),
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        can_shift=options.shift,
    )
