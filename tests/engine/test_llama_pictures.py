"""Models that know colours are shown pictures; what they say proves that they saw them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import permutations

import pytest

pytest.importorskip("llama_cpp")

from loadtest.pictures import RGB
from runnerd.engine.base import EngineConfig
from tests.engine.llama_builders import MODEL, loaded
from tests.engine.showing import Show, image
from tests.engine.vision_files import VisionModel, gemma3, idefics3, needs_gemma, phi4

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

# Copying words is what these models do best: four times they are shown how.
SHOWN = ("dog sun tree cat", "house river stone bird", "lamp chair window door", "car rope king")
COPY = "".join(f"Input: {words}\nOutput: {words}\n\n" for words in SHOWN)
LIST = "".join(f"Words: {words}. List: {words.replace(' ', ', ')}.\n" for words in SHOWN)
GEMMA_QUESTION = " is the color of the picture. The color of the picture is"


@contextmanager
def vision(files: VisionModel, *, n_batch: int = 128, n_ubatch: int = 512) -> Iterator[Show]:
    """Load a model that sees; without flash attention, so that cuts of a prompt change no bit."""
    config = EngineConfig(
        model=files.model,
        mmproj=files.mmproj,
        n_slots=4,
        n_ctx=512,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        flash_attn="off",
        n_threads=1,
    )
    with loaded(config) as engine:
        yield Show(engine)


@pytest.fixture(scope="module")
def by_size() -> Iterator[Show]:
    with vision(phi4(max_tokens=64)) as show:
        yield show


@pytest.fixture(scope="module")
def in_tiles() -> Iterator[Show]:
    with vision(idefics3()) as show:
        yield show


@pytest.fixture(scope="module")
def in_one_pass() -> Iterator[Show]:
    with vision(gemma3()) as show:
        yield show


def named_by_smollm2(show: Show, names: Iterable[str], width: int) -> list[list[str]]:
    prompts = [
        show.prompt(
            "What is the color of the picture?",
            image([name], width=width),
            "\nAnswer: The color is",
        )
        for name in names
    ]
    return [said.colours for said in show.ask(*prompts)]


# --- colours ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 64])
def test_a_picture_of_any_size_is_called_by_its_colour(by_size: Show, width: int) -> None:
    assert named_by_smollm2(by_size, RGB, width) == [[name] for name in RGB]


def test_a_picture_of_several_tiles_is_called_by_its_colour(in_tiles: Show) -> None:
    names = ("red", "blue", "white", "brown")
    assert named_by_smollm2(in_tiles, names, 128) == [[name] for name in names]


@needs_gemma
def test_a_picture_all_rows_of_which_see_each_other_is_called_by_its_colour(
    in_one_pass: Show,
) -> None:
    prompts = [in_one_pass.prompt(image([name], width=50), GEMMA_QUESTION) for name in RGB]
    assert [said.colours for said in in_one_pass.ask(*prompts)] == [[name] for name in RGB]


# --- order --------------------------------------------------------------------------------------


def test_two_pictures_are_told_in_their_order(by_size: Show) -> None:
    pairs = list(permutations(("red", "blue", "green"), 2))
    prompts = [
        by_size.prompt(f"{COPY}Input:", *(image([name], width=16) for name in pair), "\nOutput:")
        for pair in pairs
    ]
    said = by_size.ask(*prompts, n_tokens=3)
    assert [tuple(each.colours[:2]) for each in said] == pairs


@needs_gemma
def test_two_pictures_each_of_one_pass_are_told_in_their_order() -> None:
    pairs = list(permutations(("red", "blue", "green"), 2))
    with vision(gemma3(grid=2, speakers=1)) as show:
        prompts = [
            show.prompt(f"{LIST}Words:", *(image([name]) for name in pair), ". List:")
            for pair in pairs
        ]
        said = show.ask(*prompts, n_tokens=4)
    assert [tuple(each.colours[:2]) for each in said] == pairs


def test_the_parts_of_a_picture_are_told_in_their_order(by_size: Show) -> None:
    for names in (["red", "blue", "green", "pink"], ["white", "brown", "yellow", "black"]):
        picture = image(names[:2], names[2:], width=32)
        (said,) = by_size.ask(by_size.prompt(f"{COPY}Input:", picture, "\nOutput:"), n_tokens=5)
        assert said.colours[:4] == names


# --- batches ------------------------------------------------------------------------------------


def test_a_picture_cut_by_every_border_of_a_batch_gives_the_same_logits() -> None:
    corner, quadrants = image(["pink"], width=16), image(["red", "green"], ["blue", "yellow"])
    outlooks = []
    for n_batch, lengths in ((256, {1, 16}), (16, set(range(1, 16)))):
        with vision(phi4(max_tokens=64), n_batch=n_batch) as show:
            for n_words in range(1, 16):
                # The corner is waited for; what follows it is there, and shares a step.
                prompt = show.prompt(corner, " the" * n_words, quadrants, "\nThe color is")
                outlooks.append(show.ask(prompt)[0].outlooks)
            found = {len(span.inputs) for span in show.media_spans}
            assert found == lengths
    assert outlooks[15:] == outlooks[:15]


@needs_gemma
def test_a_picture_that_must_share_a_pass_is_whole_however_small_the_batch() -> None:
    quadrants = image(["red", "green"], ["blue", "yellow"])
    outlooks = []
    for n_batch in (512, 16):
        with vision(gemma3(), n_batch=n_batch, n_ubatch=n_batch) as show:
            prompts = [show.prompt("the " * n, quadrants, GEMMA_QUESTION) for n in (1, 5, 9)]
            outlooks.append([show.ask(prompt)[0].outlooks for prompt in prompts])
            assert {len(span.inputs) for span in show.media_spans} == {64}
    assert outlooks[1] == outlooks[0]


@needs_gemma
def test_rows_that_share_a_pass_see_those_behind_them(in_one_pass: Show) -> None:
    quadrants = image(["red", "green"], ["blue", "yellow"])
    begin = "<start_of_turn>user\nWhat is the color of the picture? "
    end = "<end_of_turn>\n<start_of_turn>model\nThe color of the picture is"
    (said,) = in_one_pass.ask(in_one_pass.prompt(begin, quadrants, end))
    assert said.text == " blue"  # "red" where each row sees only those before it


@needs_gemma
def test_what_others_are_shown_changes_no_bit(in_one_pass: Show) -> None:
    first = image(["red", "green"], ["blue", "yellow"])
    outlooks = []
    for names in (("red", "pink", "white"), ("blue", "green", "black")):
        pictures = [first, *(image([name]) for name in names)]
        prompts = [in_one_pass.prompt("the ", each, GEMMA_QUESTION) for each in pictures]
        said = in_one_pass.ask(*prompts)
        assert [each.colours for each in said[1:]] == [[name] for name in names]
        outlooks.append(said[0].outlooks)
    assert outlooks[1] == outlooks[0]
