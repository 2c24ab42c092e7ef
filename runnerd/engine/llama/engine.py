"""The llama.cpp engine: a model, its context and its samplers behind `Engine`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from runnerd.core.batch import (
    Adapters,
    Batch,
    BatchKind,
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    Edit,
    KVCopy,
    KVRemove,
    KVShift,
    Limits,
    SampleFault,
    SamplerClose,
    SamplerOpen,
)
from runnerd.core.prompt import Part, Prompt
from runnerd.engine.base import (
    ConstraintKind,
    Decoded,
    EncodedImage,
    Pixels,
    Pooling,
    Vectors,
)
from runnerd.engine.llama.abort import AbortSwitch
from runnerd.engine.llama.context import LlamaContext, Logits
from runnerd.engine.llama.embedder import Embedder
from runnerd.engine.llama.grammar import GrammarCompiler
from runnerd.engine.llama.groups import decode_groups
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.model import LlamaModel
from runnerd.engine.llama.sampler import Samplers
from runnerd.engine.llama.threads import Team
from runnerd.engine.llama.worst_image import try_worst_image
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.errors import EngineFailed

if TYPE_CHECKING:  # to import it loads libmtmd, which only models that read images need
    from runnerd.engine.llama.projector import Projector


class LlamaEngine:
    """A model run by llama.cpp; see `Engine` for what each method promises.

    One without a context makes embeddings only. In `wide_share` of a pass's nodes each kind of
    layer comes once.
    """

    def __init__(
        self,
        model: LlamaModel,
        context: LlamaContext | None,
        embedder: Embedder,
        limits: Limits,
        *,
        projector: "Projector | None",
        team: Team,
        memory: MemoryPlan,
        wide_share: float = 1.0,
    ) -> None:
        self.limits = limits
        self.memory = memory
        self._wide_share = wide_share
        self.model = replace(
            embedder.describe(model.description),
            can_generate=context is not None,
            n_image_rows=projector.largest.n_inputs if projector else 0,
        )
        self._projector = projector
        self._sees_ahead = projector is not None and projector.sees_ahead
        self._team = team
        self._model = model
        self._generating = context
        self._embedder = embedder
        self._vocabulary = model.vocabulary
        n_vocab, vocab = model.vocabulary.n_tokens, lib.llama_model_get_vocab(model.handle)
        self._samplers = Samplers(n_vocab, model.vocabulary.end_tokens, vocab)
        self._grammars = GrammarCompiler(vocab, n_vocab)
        self._spoiled: set[int] = set()  # slots, by the last step
        self._is_open = True

    @property
    def _context(self) -> LlamaContext:
        assert self._generating is not None, "the model makes embeddings only"
        return self._generating

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """Turn a request's parts into inputs."""
        picture_of = self._projector.picture if self._projector else None
        return self._vocabulary.expand(parts, picture_of, add_bos=add_bos)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._vocabulary.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return self._vocabulary.is_end(token)

    def apply(self, edits: Sequence[Edit]) -> None:
        """Carry out edits, in order."""
        if self._spoiled:  # not before, for the other batches of that step
            self._context.cells.scrub(self._spoiled)
            self._spoiled.clear()
        for edit in edits:
            match edit:
                case KVRemove(slot_id, p0, p1):
                    self._context.cells.remove(slot_id, p0, p1)
                case KVShift(slot_id, p0, p1, delta):
                    self._context.cells.shift(slot_id, p0, p1, delta)
                case SamplerOpen(seq_id, sampling, history):
                    self._samplers.open(seq_id, sampling, history)
                case SamplerClose(seq_id):
                    self._samplers.close(seq_id)
                case KVCopy(from_slot_id, slot_id, n_pos):
                    self._context.cells.copy(from_slot_id, slot_id, n_pos)
                case CheckpointSave(checkpoint_id, slot_id):
                    self._context.cells.checkpoints.save(checkpoint_id, slot_id)
                case CheckpointRestore(checkpoint_id, slot_id, n_pos):
                    self._context.cells.restore(checkpoint_id, slot_id, n_pos)
                case CheckpointDrop(checkpoint_id):
                    self._context.cells.checkpoints.drop(checkpoint_id)
                case _:
                    assert_never(edit)

    def decode(self, batch: Batch) -> Decoded:
        """Run one forward pass and sample; see `Engine.decode`."""
        with self._team.passing("decode", batch.n_rows, self._own_abort) as n_threads:
            self._context.use_threads(n_threads)
            rows = self._pass(batch)
        wanted = [span for span in batch.spans if span.wants_logits]
        decoded = self._samplers.sample([span.seq_id for span in wanted], rows)
        outcomes = zip(wanted, decoded.sampled, strict=True)
        self._spoiled.update(
            span.slot_id
            for span, sampled in outcomes
            if isinstance(sampled, SampleFault) and sampled.spoils_slot
        )
        return decoded

    @property
    def _own_abort(self) -> AbortSwitch | None:
        """What stops a pass for another try; None where that would throw back more than it.

        A recurrent state cannot go back. Nor can windows that share their cells, if only by a
        row: later rows of the pass may have taken the cells of those that are needed again.
        """
        limits = self.limits
        may_stop = limits.can_rewind and not (limits.window and limits.is_unified)
        return self._context.abort if may_stop else None

    def _pass(self, batch: Batch) -> Logits:
        match batch.kind:
            case BatchKind.TOKENS:
                return self._context.decode(batch.spans)
            case BatchKind.MEDIA:
                assert not self._sees_ahead, "rows of an image that need a pass without a mask"
                return self._context.decode_media(batch.spans)
            case BatchKind.MEDIA_NON_CAUSAL:
                assert self._sees_ahead, "rows of an image that need a mask"
                has_window = self._model.n_swa > 0
                return decode_groups(self._context, batch.spans, has_window=has_window)
            case _:
                assert_never(batch.kind)

    def constrain(self, kind: ConstraintKind, text: str) -> object:
        """See `Engine.constrain`."""
        return self._grammars.compile(kind, text)

    def use_adapters(self, adapters: Adapters) -> None:
        """See `Engine.use_adapters`."""
        self._context.use_adapters(adapters)

    def set_abort(self, wanted: bool, /) -> None:
        """See `Engine.set_abort`."""
        self._embedder.abort.set(wanted)
        if self._generating is not None:
            self._generating.abort.set(wanted)

    def oldest(self) -> tuple[int, ...]:
        """See `Engine.oldest`."""
        return self._context.cells.oldest()

    def checkpoint_bytes(self, checkpoint_id: int) -> int:
        """See `Engine.checkpoint_bytes`."""
        return self._context.cells.checkpoints.n_bytes(checkpoint_id)

    def embed(self, inputs: Sequence[Sequence[int]], pooling: Pooling) -> Vectors:
        """See `Engine.embed`."""
        return self._embedder.embed(inputs, pooling)

    def warm_up(self, reached: Callable[[float], None]) -> None:
        """Run what every daemon meets first, and the worst image, and see that it runs.

        `reached` is told the fraction that is done between passes, and may raise.
        """
        token = self.model.bos_token or 0
        if self._generating is None:
            self._embedder.embed([[token]], self.model.poolings[0])
            return
        n_parts = 2 if self._projector is None else 4
        self._generating.warm_up(token, lambda fraction: reached(fraction / n_parts))
        reached(1 / n_parts)
        self._generating.warm_up_wide(token, self._wide_share)
        reached(2 / n_parts)
        if self._projector is None:
            return
        has_window = self._model.n_swa > 0
        try_worst_image(self._projector, self._generating, reached, has_window=has_window)

    def encode(self, images: Sequence[Pixels]) -> tuple[EncodedImage | EngineFailed, ...]:
        """See `Engine.encode`."""
        if self._projector is None:
            return tuple(EngineFailed("the model reads no images") for _ in images)
        return self._projector.encode(images)

    def close(self) -> None:
        """Free everything; a second call does nothing.

        A projector that encodes is left to the process's end, with the model that it reads.
        """
        if self._is_open:
            self._is_open = False
            self._team.close()
            self._samplers.close_all()
            self._embedder.close()
            if self._generating is not None:
                self._generating.close()
            if self._projector is None or self._projector.close():
                self._model.close()
