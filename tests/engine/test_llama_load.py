from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.batch import KVRemove, KVShift
from runnerd.engine import open_engine
from runnerd.errors import BadModel, ConfigError, LoadCancelled, ModelMissing
from tests.engine.driving import PROMPTS, apply, generate_alone, tokens
from tests.engine.gguf_files import ARCHITECTURE, GGUFFile, number, tensor
from tests.engine.llama_builders import MODEL, llama, llama_config, loaded
from tests.engine.rows import context_of, feed, loaded_llama

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

PHASES = ["open", "weights", "context", "warm-up"]


def always(phase: str, fraction: float) -> bool:
    return True


def test_progress_goes_through_the_phases_and_never_back() -> None:
    told: list[tuple[int, float]] = []

    def progress(phase: str, fraction: float) -> bool:
        told.append((PHASES.index(phase), fraction))
        return True

    open_engine(llama_config(), progress).close()
    assert all(before <= after for before, after in pairwise(told))
    assert all(0 <= fraction <= 1 for _, fraction in told)
    assert {phase for phase, _ in told} == {0, 1, 2, 3}
    assert told[-1] == (3, 1.0)


@pytest.mark.parametrize(
    ("at", "least"),
    [("open", 0.0), ("weights", 0.0), ("weights", 0.5), ("context", 0.0), ("warm-up", 0.0)],
)
def test_a_load_can_be_stopped_anywhere(at: str, least: float) -> None:
    with pytest.raises(LoadCancelled, match=at):
        open_engine(llama_config(), lambda phase, fraction: phase != at or fraction < least)


@pytest.mark.parametrize("at", ["open", "weights", "context", "warm-up"])
def test_an_error_in_progress_comes_out_as_it_is(at: str) -> None:
    class Broken(Exception):
        pass

    n_calls = 0

    def progress(phase: str, fraction: float) -> bool:
        nonlocal n_calls
        if phase == at:
            n_calls += 1
            raise Broken
        return True

    with pytest.raises(Broken):
        open_engine(llama_config(), progress)
    assert n_calls == 1


def test_a_stopped_load_does_not_spoil_the_next_one() -> None:
    with pytest.raises(LoadCancelled):
        open_engine(llama_config(), lambda phase, fraction: fraction < 0.3)
    with llama() as engine:
        assert len(generate_alone(engine, tokens(engine, PROMPTS[0]), 2)) == 2


def test_a_good_load_keeps_its_debug_lines_off_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    open_engine(llama_config(), always).close()
    lines = capfd.readouterr().err.splitlines()
    assert any("loaded meta data" in line for line in lines)
    assert not any("loading tensor" in line or "input_tensors" in line for line in lines)


def test_a_shift_is_tried_while_loading_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with loaded_llama(llama_config()) as engine:
        n_made = capfd.readouterr().err.count("sched_reserve: reserve took")
        assert context_of(engine).cells.held() == ((-1, -1),) * 4
        feed(engine, 0, range(100, 120))
        apply(engine, KVRemove(0, 0, 8), KVShift(0, 8, None, -8))
        feed(engine, 0, range(100, 120), 12)
        assert n_made > 0
        assert capfd.readouterr().err == ""


def test_to_close_twice_is_to_close_once() -> None:
    engine = open_engine(llama_config(), always)
    engine.close()
    engine.close()
    with llama() as another:  # what is freed twice spoils what is made next
        assert len(generate_alone(another, tokens(another, PROMPTS[0]), 2)) == 2


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing):
        open_engine(llama_config(model=str(tmp_path / "none.gguf")), always)


def test_what_llama_cpp_finds_wrong_is_told_in_its_words(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    file = GGUFFile((ARCHITECTURE,), (tensor("t", (8,)),), bytes(32))
    path.write_bytes(file.to_bytes())
    with pytest.raises(BadModel, match="unknown model architecture: 'toy'"):
        open_engine(llama_config(model=str(path)), always)


def test_the_context_is_checked_before_the_weights_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    path.write_bytes(GGUFFile((ARCHITECTURE, number("toy.context_length", 128))).to_bytes())
    phases = set()

    def progress(phase: str, fraction: float) -> bool:
        phases.add(phase)
        return True

    with pytest.raises(ConfigError, match=r"256.*128"):
        open_engine(llama_config(model=str(path)), progress)
    assert phases == {"open"}


def test_limits_are_what_was_asked_for() -> None:
    with loaded(llama_config(n_slots=3, n_ctx=300, n_batch=100, n_ubatch=50)) as engine:
        limits = engine.limits
        assert (limits.n_slots, limits.n_ctx, limits.n_cells) == (3, 300, 900)
        assert (limits.n_batch, limits.n_ubatch, limits.can_shift) == (100, 50, True)


def test_a_batch_is_no_larger_than_the_cache() -> None:
    with loaded(llama_config(n_slots=1, n_ctx=300, n_batch=2048)) as engine:
        assert (engine.limits.n_batch, engine.limits.n_ubatch) == (512, 512)


def test_256_slots_are_possible() -> None:
    with loaded(llama_config(n_slots=256, n_ctx=64, n_batch=256, n_cells=1024)) as engine:
        prompt = tokens(engine, PROMPTS[0])
        first = generate_alone(engine, prompt, 2)
        assert generate_alone(engine, prompt, 2, slot_id=255) == first
