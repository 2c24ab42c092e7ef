"""Gemma 3: most layers see only the last 512 positions, and forget what lies before."""

from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import CheckpointRestore, CheckpointSave, KVCopy, KVRemove, Span
from runnerd.core.prompt import TextPart
from runnerd.engine.llama.engine import LlamaEngine
from tests.engine.driving import apply
from tests.engine.gemma import WINDOW, gemma, is_installed
from tests.engine.llama_builders import llama_config
from tests.engine.rows import Row, context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(not is_installed(), reason="the test model is not installed"),
]

N_AFTER = 4  # rows run after each cut
N_PASS = 16
N_COPIES = 5  # that go back in one pass
N_SLIDING = 1024  # cells of a sliding layer: what is stored there once lies in order
N_WATCHED = 976  # what is forgotten when the text is at its end
PREFIXES = (1150, 1300, 1450, 1500)
N_CUTS = 50  # of each prefix


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = gemma(tmp_path_factory.mktemp("gemma"))
    assert path is not None
    return path


def text_tokens(engine: LlamaEngine, n_tokens: int) -> tuple[int, ...]:
    """Return the first tokens of a text without repetitions."""
    return engine.expand([TextPart(topics["compound"])]).inputs[:n_tokens]


class TestSlotsApart:
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, model: str) -> Iterator[LlamaEngine]:
        config = llama_config(
            model=model, n_slots=N_COPIES + 1, n_ctx=1536, n_batch=512, n_ubatch=512, kv="split"
        )
        with loaded_llama(config) as engine:
            yield engine

    def test_what_follows_a_cut_beyond_the_window_equals_a_cold_run_to_the_last_bit(
        self, engine: LlamaEngine
    ) -> None:
        tokens = text_tokens(engine, PREFIXES[-1])
        cold: dict[int, Row] = {}
        for at in range(0, N_WATCHED, N_PASS):
            apply(engine, CheckpointSave(at, 0))
            middle, end = at + N_AFTER, at + N_PASS
            spans = [
                Span(0, 0, start, tokens[start:stop], wants_logits=True)
                for start, stop in ((at, middle), (middle, end))
            ]
            row, _ = context_of(engine).decode(spans)  # a lone one has other last bits
            cold[at] = row.copy()
        choose = np.random.default_rng(7)
        n_past = N_WATCHED
        for n_prefix in PREFIXES:
            feed(engine, 0, tokens[n_past:n_prefix], n_past, n_rows=48)
            n_past = n_prefix
            oldest = engine.oldest()[0]
            assert oldest == n_prefix - N_SLIDING
            beyond = [at for at in cold if 0 < at < oldest + WINDOW]
            cuts = choose.choice(beyond, N_CUTS).tolist()
            for start in range(0, N_CUTS, N_COPIES):
                self.check_cuts(engine, tokens, cuts[start : start + N_COPIES], cold)

    def check_cuts(
        self,
        engine: LlamaEngine,
        tokens: tuple[int, ...],
        cuts: list[int],
        cold: dict[int, Row],
    ) -> None:
        """Go back on copies of slot 0, all in one pass."""
        spans = []
        for slot_id, at in enumerate(cuts, start=1):
            restore = CheckpointRestore(at, slot_id, at)
            apply(engine, KVRemove(slot_id, 0), KVCopy(0, slot_id, at), restore)
            spans.append(Span(0, slot_id, at, tokens[at : at + N_AFTER], wants_logits=True))
        rows = context_of(engine).decode(spans)
        for at, row in zip(cuts, rows, strict=True):
            assert np.array_equal(row, cold[at]), f"cut at {at}"

    def test_to_go_back_beyond_the_window_takes_a_checkpoint(self, engine: LlamaEngine) -> None:
        at = 640
        tokens = text_tokens(engine, at + N_AFTER)
        apply(engine, KVRemove(1, 0), KVRemove(2, 0), KVCopy(0, 1, at), KVCopy(0, 2, at))
        assert engine.oldest()[1] > at - WINDOW
        apply(engine, CheckpointRestore(at, 2, at))
        right, wrong = (feed(engine, slot, tokens[at:], at) for slot in (2, 1))
        assert not np.allclose(right, wrong, atol=0.1)

    def test_another_text_after_a_cut_equals_a_cold_run(self, engine: LlamaEngine) -> None:
        at, other = 160, text_tokens(engine, 1200)[1150:]
        tokens = text_tokens(engine, at)
        for slot_id in (2, 3):
            apply(engine, KVRemove(slot_id, 0))
        apply(engine, KVCopy(0, 2, at), CheckpointRestore(at, 2, at))
        warm = feed(engine, 2, other, at)
        assert np.array_equal(warm, feed(engine, 3, tokens + other))

    def test_a_copy_saved_at_once_is_saved_as_it_is(self, engine: LlamaEngine) -> None:
        at, end = PREFIXES[-1] - 20, 9999
        tokens = text_tokens(engine, PREFIXES[-1])
        apply(engine, KVRemove(1, 0), KVCopy(0, 1, at), CheckpointSave(end, 1))
        expected = feed(engine, 1, tokens[at:], at)
        apply(engine, KVRemove(2, 0), KVCopy(0, 2, at), CheckpointRestore(end, 2, at))
        np.testing.assert_allclose(feed(engine, 2, tokens[at:], at), expected, atol=1.5)


def test_copies_in_one_pool_leave_room_for_every_slots_window(model: str) -> None:
    config = llama_config(model=model, n_slots=2, n_ctx=1536, n_batch=32, n_ubatch=32, kv="unified")
    with loaded_llama(config) as engine:
        tokens = text_tokens(engine, 700)
        feed(engine, 0, tokens)
        apply(engine, KVCopy(0, 1, len(tokens)))
        oldest = engine.oldest()
        assert oldest[0] < oldest[1] == len(tokens) - WINDOW
        both = [feed(engine, slot, tokens[:200:2], len(tokens)) for slot in (0, 1)]
        np.testing.assert_allclose(both[0], both[1], atol=1.5)
        assert engine.oldest()[0] > oldest[0]


@pytest.mark.parametrize(
    ("swa_full", "n_ctx", "window"), [(False, 1536, WINDOW), (True, 1536, 0), (False, 512, 0)]
)
def test_the_window_counts_where_a_slot_can_outgrow_its_cells(
    model: str, swa_full: bool, n_ctx: int, window: int
) -> None:
    config = llama_config(model=model, n_slots=2, n_ctx=n_ctx, n_ubatch=64, swa_full=swa_full)
    with loaded_llama(config) as engine:
        limits = engine.limits
        assert (limits.window, limits.needs_checkpoints) == (window, window > 0)
        assert limits.can_shift == (n_ctx <= WINDOW)
