"""Images in the llama engine: positions of M-RoPE, the causal mask, aborts, and memory."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Batch, BatchKind, KVCopy, KVRemove, Span
from runnerd.engine.base import EncodedImage, Engine, Pixels
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.groups import decode_groups
from runnerd.errors import DecodeAborted, NoKVSlot
from tests.engine.driving import apply
from tests.engine.feeding import Feed, encoded, filled_with, looked, picture, prompt_of
from tests.engine.llama_builders import MODEL, llama_config
from tests.engine.rows import context_of, feed, loaded_llama
from tests.engine.tiny_models import N_EMBD, lfm2
from tests.engine.vision_files import VisionModel, gemma3, needs_gemma, phi4, qwen2vl

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

WIDE = picture(1, (200, 30, 30), (20, 40, 250), width=80, height=32)  # 5 x 2 rows
N_KEPT = 1000  # bytes, per image
MOST_ROWS = 64  # where it can be limited: the image that takes the most is encoded while loading


def engine_of(files: VisionModel) -> Iterator[LlamaEngine]:
    config = llama_config(model=files.model, mmproj=files.mmproj, n_image_rows=MOST_ROWS)
    with loaded_llama(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def mrope() -> Iterator[LlamaEngine]:
    yield from engine_of(qwen2vl())


@pytest.fixture(scope="module")
def causal() -> Iterator[LlamaEngine]:
    yield from engine_of(phi4(MOST_ROWS))


@pytest.fixture(scope="module")
def in_one_pass() -> Iterator[LlamaEngine]:
    yield from engine_of(gemma3(grid=4))


# --- positions ----------------------------------------------------------------------------------


def test_rows_of_mrope_lie_in_a_grid_and_take_the_positions_of_its_longer_side(
    mrope: Engine,
) -> None:
    (group,) = prompt_of(mrope, WIDE).groups
    assert (group.n_inputs, group.n_pos) == (10, 5)
    offsets = encoded(mrope, [WIDE])[1].offsets
    assert offsets[1:3].T.tolist() == [[y, x] for y in range(2) for x in range(5)]
    assert not offsets[0].any()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_axis_of_a_position_counts(mrope: Engine, axis: int) -> None:
    prompt = prompt_of(mrope, "a", WIDE, "bc")
    media = encoded(mrope, [WIDE])
    offsets = media[1].offsets.copy()
    moved = np.sort(offsets[axis] + np.arange(10, dtype=np.int32) % 2)
    offsets[axis] = np.minimum(moved, prompt.groups[0].n_pos - 1)
    other = {1: EncodedImage(media[1].rows, offsets)}
    (a, b) = (dict(looked(mrope, prompt, each)) for each in (media, other))
    assert max(abs(a[token] - b[token]) for token in a.keys() & b.keys()) > 0.1


def test_the_account_of_positions_survives_an_image_at_the_end(mrope: LlamaEngine) -> None:
    prompt = prompt_of(mrope, "abc", WIDE)
    media = encoded(mrope, [WIDE])
    filled_with(mrope, 0, prompt, media)
    n_pos = prompt.layout.position(len(prompt.inputs))
    cells = context_of(mrope).cells
    assert cells.n_past[0] == n_pos
    apply(mrope, KVRemove(1, 0), KVCopy(0, 1, n_pos))
    assert cells.n_past[1] == n_pos
    apply(mrope, KVRemove(0, n_pos))
    assert cells.n_past[0] == n_pos
    start = prompt.layout.position(prompt.groups[0].start)
    apply(mrope, KVRemove(0, start))
    assert cells.n_past[0] == start
    apply(mrope, KVRemove(0, 0))
    assert cells.n_past[0] == 0


def test_an_image_of_mrope_is_run_to_its_end_when_it_is_told_to_stop(mrope: LlamaEngine) -> None:
    prompt, media = prompt_of(mrope, WIDE, "x"), encoded(mrope, [WIDE])
    coming = Feed(0, prompt, media, prompt.groups[0].start)
    spans = [coming.advance(4)[1], coming.advance(99)[1]]
    apply(mrope, KVRemove(0, 0))
    context = context_of(mrope)
    context.decode([replace(spans[0], pos=0, inputs=prompt.inputs[: prompt.groups[0].start])])
    mrope.set_abort(True)
    try:
        for span in spans:
            context.decode_media([span])
    finally:
        mrope.set_abort(False)
    assert context.cells.n_past[0] == prompt.layout.position(prompt.groups[0].stop)


@pytest.mark.parametrize("n_kept", [4, 7])
def test_the_rest_of_an_image_that_is_stopped_is_told_not_to_be_stored(
    causal: LlamaEngine, n_kept: int
) -> None:
    prompt, media = prompt_of(causal, WIDE, "x"), encoded(causal, [WIDE])
    expected = looked(causal, prompt, media)
    coming, context = Feed(0, prompt, media, prompt.groups[0].start), context_of(causal)
    begun, rest = coming.advance(n_kept)[1], coming.advance(99)[1]
    apply(causal, KVRemove(0, 0))
    if prompt.groups[0].start:
        context.decode([replace(begun, pos=0, inputs=prompt.inputs[: begun.pos], media=None)])
    context.decode_media([begun])
    causal.set_abort(True)
    with pytest.raises(DecodeAborted) as caught:
        context.decode_media([rest])
    causal.set_abort(False)
    assert caught.value.n_stored == (0,)
    context.decode_media([rest])
    assert looked(causal, prompt, media, n_cached=prompt.groups[0].stop) == expected


# --- one pass -----------------------------------------------------------------------------------


@needs_gemma
def test_rows_see_those_behind_them_only_without_the_mask(in_one_pass: LlamaEngine) -> None:
    prompt, context = prompt_of(in_one_pass, WIDE), context_of(in_one_pass)
    (group,) = prompt.groups
    media = encoded(in_one_pass, [WIDE])[1]
    span = Feed(0, prompt, {1: media}, group.start).advance(99)[1]
    lead = replace(span, pos=0, inputs=prompt.inputs[: group.start], media=None)
    found = []
    for sees_ahead in (True, False):
        apply(in_one_pass, KVRemove(0, 0))
        context.decode([lead])
        last = replace(span, wants_logits=True)
        if sees_ahead:
            with context.without_causal_mask():
                found.append(context.decode_media([last]).copy())
        else:
            found.append(context.decode_media([last]).copy())
    assert np.abs(found[0] - found[1]).max() > 0.1


@needs_gemma
def test_a_group_that_is_stopped_leaves_nothing_of_itself(in_one_pass: LlamaEngine) -> None:
    prompt, context = prompt_of(in_one_pass, WIDE), context_of(in_one_pass)
    (group,) = prompt.groups
    span = Feed(0, prompt, encoded(in_one_pass, [WIDE]), group.start).advance(99)[1]
    apply(in_one_pass, KVRemove(0, 0))
    context.decode([replace(span, pos=0, inputs=prompt.inputs[: group.start], media=None)])
    in_one_pass.set_abort(True)
    try:
        with pytest.raises(DecodeAborted) as caught, context.without_causal_mask():
            context.decode_media([span])
    finally:
        in_one_pass.set_abort(False)
    assert caught.value.n_stored == (0,)
    assert context.cells.n_past[0] == group.start


@needs_gemma
def test_where_only_the_first_of_two_groups_finds_room_the_first_is_stored() -> None:
    files = gemma3(grid=4)
    config = llama_config(model=files.model, mmproj=files.mmproj, n_cells=256)
    with loaded_llama(config) as engine:
        prompt, media = prompt_of(engine, WIDE, WIDE), encoded(engine, [WIDE])
        first, second = prompt.groups
        token = prompt.inputs[0]
        n_free = 20
        for slot_id, n_rows in ((1, 200), (2, 256 - 200 - first.start - n_free)):
            feed(engine, slot_id, [token] * n_rows)
        feed(engine, 0, prompt.inputs[: first.start])
        span = Feed(0, prompt, media, first.start).advance(99)[1]
        spans = (span, replace(span, pos=span.pos + len(span.inputs)))
        with pytest.raises(DecodeAborted) as caught:
            engine.decode(Batch(BatchKind.MEDIA_NON_CAUSAL, spans))
        assert caught.value.n_stored == (16, 0)
        assert context_of(engine).cells.n_past[0] == first.stop
        with pytest.raises(NoKVSlot):
            engine.decode(Batch(BatchKind.MEDIA_NON_CAUSAL, spans[1:]))
        assert second.n_inputs == 16


def test_groups_of_several_lengths_are_whole_where_some_layers_keep_a_state(tmp_path: Path) -> None:
    config = llama_config(model=lfm2(tmp_path, 2), kv="unified")
    random = np.random.default_rng(1)
    spans = []
    for slot_id, n_rows in enumerate((12, 16)):
        rows = random.normal(size=(n_rows, N_EMBD)).astype(np.float32)
        media = EncodedImage(rows, np.arange(n_rows, dtype=np.int32)[np.newaxis])
        spans.append(Span(slot_id, slot_id, 0, (-1,) * n_rows, True, media=media))
    with loaded_llama(config) as engine:
        context = context_of(engine)
        alone = [decode_groups(context, [span], has_window=False) for span in spans]
        context.cells.clear()
        together = decode_groups(context, spans, has_window=False)
    assert np.allclose(together, np.concatenate(alone), atol=1e-3)


# --- memory -------------------------------------------------------------------------------------


def anonymous_bytes() -> int:
    gc.collect()
    return sum(each.anonymous for each in psutil.Process().memory_maps(grouped=True))


def test_a_thousand_images_of_as_many_sizes_leave_no_memory_behind(causal: Engine) -> None:
    rgb = np.zeros((200, 200, 3), np.uint8)

    def encode(n_images: int) -> None:
        for number in range(n_images):
            image = Pixels(number, rgb[: 16 + number % 100, : 16 + number % 61])
            prompt_of(causal, image)
            assert isinstance(causal.encode([image])[0], EncodedImage)

    encode(1100)  # what is remembered of sizes is full
    before = anonymous_bytes()
    encode(1000)
    assert anonymous_bytes() - before < 1000 * N_KEPT
