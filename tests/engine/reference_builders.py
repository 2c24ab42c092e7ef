"""Builders for tests of the reference engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from runnerd.core.batch import Batch, BatchKind, SamplerOpen, Sampling, Span
from runnerd.core.prompt import Prompt, TextPart
from runnerd.engine.base import EngineConfig
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions
from runnerd.engine.reference.tokenizer import ByteTokenizer

SMALL = ReferenceOptions(layers=2, dim=16, heads=2)


@contextmanager
def reference(
    options: ReferenceOptions = SMALL,
    *,
    n_slots: int = 4,
    n_ctx: int = 256,
    n_batch: int = 128,
    n_ubatch: int = 64,
    n_cells: int = 0,
    kv: Literal["auto", "split", "unified"] = "auto",
    swa_full: bool = False,
    adapters: tuple[str, ...] = (),
    n_embed: int = 0,
    mmproj: str = "",
    n_image_rows: int = 0,
) -> Iterator[ReferenceEngine]:
    """Make an engine for a `with` block."""
    config = EngineConfig(
        model="",
        engine="reference",
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_cells=n_cells,
        kv=kv,
        swa_full=swa_full,
        adapters=tuple((name, "") for name in adapters),
        n_embed=n_embed,
        mmproj=mmproj,
        n_image_rows=n_image_rows,
    )
    engine = ReferenceEngine(config, options, lambda phase, fraction: True)
    try:
        yield engine
    finally:
        engine.close()


def open_greedy(engine: ReferenceEngine, *seq_ids: int) -> None:
    """Open greedy samplers."""
    engine.apply([SamplerOpen(seq_id, Sampling()) for seq_id in seq_ids])


def special(text: str) -> Prompt:
    """Expand text with special names and images, without BOS."""
    return ByteTokenizer(non_causal=True).expand([TextPart(text, special=True)], add_bos=False)


def token_batch(*spans: Span) -> Batch:
    """Return a batch of tokens."""
    return Batch(BatchKind.TOKENS, spans)


def spans_of(prompt: Prompt, slot_id: int = 0, n_rows: int = 1000) -> Iterator[Batch]:
    """Yield a prompt's batches, one span each, of at most `n_rows` where that is allowed."""
    index, stop = 0, len(prompt.inputs)
    while index < stop:
        layout = prompt.layout
        group, following = layout.group_at(index), layout.next_group(index)
        kind, start, media_id = BatchKind.TOKENS, index, 0
        if group is not None:
            kind = BatchKind.MEDIA_NON_CAUSAL if group.one_pass else BatchKind.MEDIA
            start, media_id = group.start, group.media_id
            end = group.stop if group.one_pass else min(group.stop, index + n_rows)
        else:
            end = min(following.start if following else stop, index + n_rows)
        inputs = prompt.inputs[index:end]
        pos = layout.position(start)
        span = Span(slot_id, slot_id, pos, inputs, end == stop, media_id, index - start)
        yield Batch(kind, (span,))
        index = end


def feed(
    engine: ReferenceEngine, prompt: Prompt, slot_id: int = 0, n_rows: int = 1000
) -> list[float]:
    """Feed a prompt to an empty slot; return the logits after its last input."""
    for batch in spans_of(prompt, slot_id, n_rows):
        engine.decode(batch)
    return row(engine)


def feed_tokens(
    engine: ReferenceEngine, tokens: Sequence[int], pos: int, slot_id: int = 0
) -> list[float]:
    """Feed tokens to a slot; return the logits after the last."""
    engine.decode(token_batch(Span(slot_id, slot_id, pos, tuple(tokens), wants_logits=True)))
    return row(engine)


def row(engine: ReferenceEngine, output: int = 0) -> list[float]:
    """Return a row of the last logits."""
    logits: list[float] = engine.last_logits[output].tolist()
    return logits
