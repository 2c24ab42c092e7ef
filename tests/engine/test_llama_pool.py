"""The batcher over llama.cpp: a pool that is too small for all, and turns that reuse turns."""

import logging
from collections.abc import Iterator, Sequence
from itertools import count
from pydoc_data.topics import topics

import pytest
from structlog.testing import capture_logs

pytest.importorskip("llama_cpp")

from runnerd.core.batch import Sampling
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import Prompt, TextPart
from runnerd.core.sequence import Options, admit
from runnerd.core.sequence import Sequence as Running
from runnerd.engine.base import Engine, run_step
from runnerd.errors import NoKVSlot
from runnerd.log import EventLogger
from tests.engine.gemma import gemma, is_installed
from tests.engine.llama_builders import MODEL, llama_config, loaded
from tests.engine.rows import feed, loaded_llama

pytestmark = pytest.mark.llama

SEQ_IDS = count()
ENDLESS = Sampling(ignore_end=True)
COUNTS = ("1, 2", "2, 4", "10, 20", "100, 200")  # a language model is sure how these go on


def run(
    engine: Engine,
    batcher: Batcher,
    requests: Sequence[tuple[Prompt, int]],
    *,
    shift: bool = False,
) -> list[Running]:
    """Run requests to their end, all at once."""
    running = [
        admit(next(SEQ_IDS), prompt, Options(ENDLESS, n, shift=shift), engine.limits, 0.0)
        for prompt, n in requests
    ]
    for sequence in running:
        batcher.submit(sequence)
    n_steps = 0
    while (step := batcher.plan(0.0)) is not None:
        result = run_step(engine, step)
        if result.n_batches == len(step.batches):
            batcher.commit(step, result, 0.0, 0.01)
        else:
            batcher.back_off(step, result, 0.0)
        batcher.check()
        n_steps += 1
        assert n_steps < 2000, "no end in sight"
    return running


def generated(sequence: Running) -> list[int]:
    return sequence.inputs[len(sequence.inputs) - sequence.n_generated :]


class ShortPool:
    """256 cells for four slots of 256, and what each request says when it runs alone."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
        self.prompts = [engine.expand([TextPart(text)]) for text in COUNTS]
        self.alone = [generated(self.run((prompt, 90))[0]) for prompt in self.prompts]

    def run(self, *requests: tuple[Prompt, int]) -> list[Running]:
        return run(self.engine, self.batcher, requests)


@pytest.fixture(scope="module")
def short_pool() -> Iterator[ShortPool]:
    if MODEL is None:
        pytest.skip("the test model is not installed")
    with loaded(llama_config(n_slots=4, n_ctx=256, n_cells=256)) as engine:
        yield ShortPool(engine)


@pytest.mark.parametrize(
    "asked",
    [(80, 40, 80, 80), (70, 70, 70, 70), (90, 90, 40, 90), (90, 90, 40, 75)],
    ids=str,
)
def test_in_a_pool_that_is_too_small_each_says_exactly_what_it_says_alone(
    short_pool: ShortPool, asked: tuple[int, ...]
) -> None:
    together = short_pool.run(*zip(short_pool.prompts, asked, strict=True))
    for sequence, n_asked, alone in zip(together, asked, short_pool.alone, strict=True):
        assert generated(sequence) == alone[:n_asked]


@pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
def test_what_is_forked_and_then_shifted_is_as_if_it_were_alone() -> None:
    config = llama_config(n_slots=2, n_ctx=256, n_batch=48, n_ubatch=48, kv="split")

    def said(tails: Sequence[str]) -> list[Running]:
        with loaded(config) as engine:
            batcher = Batcher(engine.limits, engine, target_itl_s=10.0)
            texts = [TextPart(topics["compound"][:500] + tail) for tail in tails]
            return run(engine, batcher, [(engine.expand([t]), 240) for t in texts], shift=True)

    tails = (" In short:", " The opposite is true:")
    together = said(tails)
    assert together[1].n_cached > 64
    for sequence, tail in zip(together, tails, strict=True):
        assert sequence.n_shifts > 0
        assert generated(sequence) == generated(said([tail])[0])


@pytest.mark.skipif(MODEL is None, reason="the test model is not installed")
def test_where_there_is_no_room_the_log_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLogger, "threshold", logging.DEBUG)
    with loaded_llama(llama_config(n_slots=2, n_cells=256)) as engine:
        feed(engine, 0, range(100, 300))
        with capture_logs() as lines, pytest.raises(NoKVSlot):
            feed(engine, 1, range(100, 160), n_rows=60)
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("debug", "kv.no_slot")
    assert (line["n_rows"], line["n_cells"], line["n_batch"]) == (60, 256, 64)
    assert line["held"] == ((0, 199), (-1, -1))


@pytest.mark.skipif(not is_installed(), reason="the test model is not installed")
def test_a_second_turn_reuses_nearly_all_of_the_first_beyond_the_window(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = gemma(tmp_path_factory.mktemp("gemma")) or ""
    config = llama_config(model=path, n_slots=2, n_ctx=1536, n_batch=48, n_ubatch=48)
    user, model = "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"
    with loaded(config) as engine:
        text = topics["compound"][:4500]
        first = (TextPart(user, special=True), TextPart(text), TextPart(model, special=True))
        batcher = Batcher(engine.limits, engine, target_itl_s=10.0)
        (before,) = run(engine, batcher, [(engine.expand(first), 8)])
        answer = b"".join(map(engine.token_bytes, generated(before))).decode(errors="replace")
        more = TextPart("<end_of_turn>\n" + user, special=True)
        second = (*first, TextPart(answer), more, TextPart("Go on."), first[-1])
        (after,) = run(engine, batcher, [(engine.expand(second), 1)])
        assert before.n_prompt > 768  # the cells of a sliding layer: it went round
        assert after.n_cached >= 0.9 * before.n_prompt
