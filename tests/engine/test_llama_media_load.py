"""Projectors that are loaded beside a model, and those that are refused, with what is wrong."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import structlog

pytest.importorskip("llama_cpp")

from loadtest.gguf import Value
from loadtest.projector import make_projector
from runnerd.core.prompt import ImagePart, TextPart
from runnerd.engine import open_engine
from runnerd.engine.base import Engine, EngineConfig, Pixels
from runnerd.engine.llama.engine import LlamaEngine
from runnerd.engine.llama.fitting_projector import blamed
from runnerd.engine.llama.mmproj import check_mmproj
from runnerd.engine.llama.projector import Projector
from runnerd.errors import (
    BadModel,
    ConfigError,
    InvalidMedia,
    LoadCancelled,
    ModelMissing,
    Unsupported,
)
from tests.engine.broken_projectors import broken_projectors
from tests.engine.llama_builders import MODEL, llama_config, loaded
from tests.engine.rows import loaded_llama
from tests.engine.vision_files import gemma3, idefics3, needs_gemma, phi4, qwen2vl, smollm2, write

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

N_MARKS = 2  # of an image of qwen2vl
PHASES = ["open", "weights", "projector", "context", "warm-up"]


def seeing(n_image_rows: int = 0) -> EngineConfig:
    return llama_config(mmproj=phi4().mmproj, n_image_rows=n_image_rows)


@contextmanager
def loaded_projector(config: EngineConfig) -> Iterator[Projector]:
    with loaded_llama(config) as engine:
        assert engine._projector is not None
        yield engine._projector


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with loaded(seeing()) as engine:
        yield engine


# --- files --------------------------------------------------------------------------------------

# What a check has missed would end the process.
TRY_ALL = """
import sys
from runnerd.engine import open_engine
from runnerd.errors import BadModel
from tests.engine.llama_builders import llama_config
for path in sys.argv[1:]:
    try:
        open_engine(llama_config(mmproj=path), lambda phase, fraction: True)
    except BadModel as err:
        print(err)
    else:
        print("loaded")
"""
WORDS = {
    "without a tensor": "unable to find tensor v.blk.1.attn_out.weight",
    "without a block": "unable to find tensor v.blk.2",
    "without heads": "clip.vision.attention.head_count is 0, expected 1 or more",
    "of another width": "clip.vision.embedding_length is 32, the tensor 'v",
    "of an unknown type": "telepathy",
    "without a type": "libmtmd cannot load it",
    "without patches": "clip.vision.patch_size is 0, expected 1 or more",
    "for images of no size": "clip.vision.image_size is 0, less than a patch of 16",
    "for images below a patch": "clip.vision.image_size is 15, less than a patch of 16",
    "with patches not in squares": "clip.vision.spatial_merge_size is 1, expected 2",
    "of DeepSeek": "a projector of type 'deepseek4v'",
    "of Hunyuan": "a projector of type 'hunyuanvl'",
    "for sound only": "a projector, but not one for images",
    "for another text model": "text model (n_embd = 576) and mmproj (n_embd = 320)",
    "of a text model": "not a projector: the architecture is 'llama'",
    "cut in its last tensor": "cut short in tensor",
    "cut in half": "cut short in tensor",
    "cut in its header": "cut short in",
    "empty": "the file is empty",
    "not GGUF": "not a GGUF file",
}


def test_a_file_that_is_no_projector_of_the_model_is_refused_with_what_is_wrong() -> None:
    files = broken_projectors()
    assert files.keys() == WORDS.keys()
    command = [sys.executable, "-c", TRY_ALL, *files.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    found = dict(zip(files, done.stdout.splitlines(), strict=True))
    for name, words in WORDS.items():
        assert words in found[name], name
        assert found[name].startswith(files[name])


def test_a_projector_that_is_not_there_is_missing() -> None:
    with pytest.raises(ModelMissing, match="nowhere"):
        open_engine(llama_config(mmproj="/nowhere.gguf"), lambda phase, fraction: True)


def test_a_vocabulary_without_the_marks_of_images_is_refused() -> None:
    config = llama_config(model=smollm2(), mmproj=idefics3().mmproj)
    with pytest.raises(BadModel, match="vocabulary lacks tokens that mark its images"):
        open_engine(config, lambda phase, fraction: True)


def test_some_projectors_say_that_images_have_no_size_of_their_own() -> None:
    sound = make_projector(Path(smollm2()), "phi4")
    entries: dict[str, Value] = {"clip.projector_type": "dots_ocr", "clip.vision.image_size": 0}
    check_mmproj(write("any-size", replace(sound, entries={**sound.entries, **entries})))


@pytest.mark.parametrize(
    "error", [AssertionError("n > 0"), InvalidMedia("0 x 0", "some"), Unsupported("no")]
)
def test_what_is_wrong_with_the_image_that_is_tried_is_wrong_with_the_projector(
    error: Exception,
) -> None:
    with (
        pytest.raises(BadModel, match=r"^/some/file: the projector does not work: "),
        blamed("/some/file"),
    ):
        raise error


# --- phases -------------------------------------------------------------------------------------


def test_the_projector_is_a_phase_of_its_own_between_weights_and_context() -> None:
    told: list[tuple[int, float]] = []

    def progress(phase: str, fraction: float) -> bool:
        told.append((PHASES.index(phase), fraction))
        return True

    open_engine(seeing(), progress).close()
    assert all(before <= after for before, after in pairwise(told))
    assert {phase for phase, _ in told} == set(range(len(PHASES)))


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_a_load_can_be_stopped_at_the_projector(least: float) -> None:
    with pytest.raises(LoadCancelled, match="projector"):
        open_engine(seeing(), lambda phase, done: phase != "projector" or done < least)


def test_the_passes_of_the_warm_up_are_told_one_by_one() -> None:
    told: list[float] = []

    def progress(phase: str, fraction: float) -> bool:
        if phase == "warm-up":
            told.append(fraction)
        return True

    open_engine(seeing(), progress).close()
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert len(set(told)) > 4, "two passes of tokens, a shift, an encode, a pass of an image"


@pytest.mark.parametrize("least", [0.1, 0.2, 0.5])
def test_a_load_can_be_stopped_between_passes_of_the_warm_up(least: float) -> None:
    with pytest.raises(LoadCancelled, match=r"at \d\d% of phase 'warm-up'"):
        open_engine(seeing(), lambda phase, done: phase != "warm-up" or done < least)


def test_libmtmd_is_not_loaded_for_a_model_without_a_projector() -> None:
    code = """
import sys
from runnerd.engine import open_engine
from tests.engine.llama_builders import llama_config
open_engine(llama_config(), lambda phase, fraction: True).close()
print(*sys.modules, open("/proc/self/maps").read())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "libllama" in done.stdout
    assert "llama_cpp.mtmd_cpp" not in done.stdout
    assert "libmtmd" not in done.stdout


# --- sizes --------------------------------------------------------------------------------------


def test_the_most_that_an_image_takes_is_known() -> None:
    config = llama_config(mmproj=phi4().mmproj, n_slots=1, n_ctx=2048)
    with loaded(config) as engine:
        assert engine.model.n_image_rows == 1024
        (group,) = engine.expand([ImagePart(1, 4000, 4000)]).groups
    assert group.n_inputs == 1024


def test_images_can_be_limited_to_so_many_rows() -> None:
    files = qwen2vl()
    config = llama_config(model=files.model, mmproj=files.mmproj, n_image_rows=36)
    with loaded(config) as engine:
        assert engine.model.n_image_rows == 36 + N_MARKS
        for side in (96, 97, 500, 5000):
            (group,) = engine.expand([ImagePart(1, side, side)]).groups
            assert (group.n_inputs, group.n_pos) == (36, 6)


def test_a_projector_that_takes_no_limit_is_told_of() -> None:
    with structlog.testing.capture_logs() as logs, loaded(seeing()) as engine:
        assert engine.model.n_image_rows == engine.limits.n_ctx - 1
    (told,) = [line for line in logs if line["event"] == "images.not_limited"]
    assert (told["wanted"], told["n_inputs"]) == (engine.limits.n_ctx // 2, 1024)


def test_a_limit_that_the_projector_does_not_take_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"images of 36 rows at most: .*1024"):
        open_engine(seeing(n_image_rows=36), lambda phase, fraction: True)


def test_a_limit_below_what_the_projector_can_do_is_a_wrong_setting() -> None:
    files = qwen2vl()
    config = llama_config(model=files.model, mmproj=files.mmproj, n_image_rows=2)
    with pytest.raises(ConfigError, match="images of 2 rows at most"):
        open_engine(config, lambda phase, fraction: True)


@needs_gemma
def test_batches_are_raised_to_hold_an_image_that_must_share_a_pass() -> None:
    files = gemma3(grid=8)
    config = llama_config(model=files.model, mmproj=files.mmproj, n_batch=16, n_ubatch=8)
    with structlog.testing.capture_logs() as logs, loaded(config) as engine:
        n_batch = 64 + engine.limits.n_slots
        assert (engine.limits.n_batch, engine.limits.n_ubatch) == (n_batch, 64)
        assert engine.model.n_image_rows == 66
    (raised,) = [line for line in logs if line["event"] == "batch.raised"]
    assert (raised["n_batch_from"], raised["n_batch_to"]) == (16, n_batch)
    assert (raised["n_ubatch_from"], raised["n_ubatch_to"]) == (8, 64)


@needs_gemma
def test_a_context_that_no_image_fits_in_is_a_wrong_setting() -> None:
    files = gemma3(grid=8)
    config = llama_config(model=files.model, mmproj=files.mmproj, n_ctx=32, n_batch=32)
    with pytest.raises(ConfigError, match="takes 66 inputs, the context holds 32"):
        open_engine(config, lambda phase, fraction: True)


@pytest.mark.parametrize(
    ("width", "height"), [(0, 16), (16, 0), (4001, 20), (20, 4001), (2**14, 2**14)]
)
def test_a_shape_that_libmtmd_might_not_survive_is_refused(
    engine: Engine, width: int, height: int
) -> None:
    with pytest.raises(InvalidMedia, match=f"{width} x {height} pixels"):
        engine.expand([ImagePart(1, width, height)])


# --- life ---------------------------------------------------------------------------------------


def test_in_use_libmtmd_says_nothing(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    engine.expand([TextPart("see "), ImagePart(1, 33, 44)])
    engine.encode([Pixels(1, np.zeros((44, 33, 3), np.uint8))])
    assert capfd.readouterr().err == ""


def test_the_bos_comes_before_the_mark_of_an_image() -> None:
    files = idefics3()
    with loaded(llama_config(model=files.model, mmproj=files.mmproj)) as engine:
        prompt = engine.expand([ImagePart(1, 64, 64), TextPart("?")])
        bare = engine.expand([ImagePart(1, 64, 64), TextPart("?")], add_bos=False)
    shift = len(prompt.inputs) - len(bare.inputs)
    assert prompt.inputs[shift:] == bare.inputs
    assert prompt.groups == tuple(group.moved(shift) for group in bare.groups)


def test_a_projector_that_encodes_is_left_to_the_end_of_the_process() -> None:
    engine = open_engine(seeing(), lambda phase, fraction: True)
    assert isinstance(engine, LlamaEngine)
    projector, model = engine._projector, engine._model
    assert projector is not None
    with projector._lock:  # as an encode holds it
        engine.close()
    assert projector.close(), "it was freed"
    model.close()
