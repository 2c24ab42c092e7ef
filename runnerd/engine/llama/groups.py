"""Groups that see all of themselves: rows without a causal mask, each group in one pass.

llama.cpp would cut a group between passes without an error, and the answer would be another one.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from runnerd.core.batch import Span
from runnerd.engine.llama.context import LlamaContext, Logits
from runnerd.errors import DecodeAborted, NoKVSlot


def decode_groups(context: LlamaContext, spans: Sequence[Span], *, has_window: bool) -> Logits:
    """Run passes over encoded groups, one per span; otherwise like `LlamaContext.decode`.

    `has_window`: some layers see only the last positions. There, where some layers keep a state,
    and where slots are apart, llama.cpp may cut what goes through together into as many rows of
    each slot.

    Raises:
        DecodeAborted: also if there is room for some of them only.
    """
    limits = context.limits
    of_one_length = has_window or not limits.is_unified or not limits.can_rewind
    outputs: list[Logits] = []
    n_done = 0
    for together in whole_groups(spans, limits.n_ubatch, of_one_length=of_one_length):
        try:
            with context.without_causal_mask():
                outputs.append(context.decode_media(together).copy())
        except NoKVSlot as err:
            if n_done == 0:
                raise
            raise DecodeAborted(_stored(spans, n_done, (0,) * len(together))) from err
        except DecodeAborted as err:
            raise DecodeAborted(_stored(spans, n_done, err.n_stored)) from err
        n_done += len(together)
    return np.concatenate(outputs)


def _stored(
    spans: Sequence[Span], n_done: int, of_last: Sequence[int | None]
) -> tuple[int | None, ...]:
    """Return what is stored of spans, the first `n_done` of which went through."""
    of_first = (len(span.inputs) for span in spans[:n_done])
    return (*of_first, *of_last, *[0] * (len(spans) - n_done - len(of_last)))


def whole_groups(
    spans: Sequence[Span], n_ubatch: int, *, of_one_length: bool
) -> Iterator[Sequence[Span]]:
    """Cut spans, a group each that needs a pass of its own, into what may share a call.

    In a call without a causal mask a slot's groups would see each other, so it has one. With
    `of_one_length` llama.cpp may cut a call into passes of as many rows of each slot as the
    shortest one has.
    """
    together: list[Span] = []
    for span in spans:
        n_rows = len(span.inputs)
        assert n_rows <= n_ubatch, f"a group of {n_rows} rows, a pass takes {n_ubatch}"
        is_full = sum(len(each.inputs) for each in together) + n_rows > n_ubatch
        is_there = any(each.slot_id == span.slot_id for each in together)
        differs = of_one_length and any(len(each.inputs) != n_rows for each in together)
        if is_full or is_there or differs:
            yield together
            together = []
        together.append(span)
    if together:
        yield together
