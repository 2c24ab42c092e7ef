"""Text to tokens, where it is long, odd or hostile: no crash, no hours, no other tokens."""

import random
from collections.abc import Iterator

import pytest

pytest.importorskip("llama_cpp")

from runnerd.core.prompt import Part, TextPart, TokensPart
from runnerd.engine.base import Engine
from runnerd.engine.llama.library import lib
from runnerd.engine.llama.vocabulary import MAX_SCANNED_BYTES, PIECE_SCANNED_BYTES, Vocabulary
from runnerd.errors import InvalidRequest
from tests.engine.contract_expand import ExpandContract
from tests.engine.gemma import gemma, is_installed
from tests.engine.llama_builders import MODEL, llama_config, loaded
from tests.engine.tiny_models import FIRST_BYTE, mamba

pytestmark = pytest.mark.llama

BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def special_name() -> str:
    return "</s>"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with loaded(llama_config(model=mamba(tmp_path_factory.mktemp("tiny")))) as engine:
        yield engine


def load_vocabulary(path: str) -> Iterator[Vocabulary]:
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(path.encode(), params)
    yield Vocabulary(model)
    lib.llama_model_free(model)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Vocabulary]:
    if MODEL is None:
        pytest.skip("the test model is not installed")
    yield from load_vocabulary(MODEL)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    if not is_installed():
        pytest.skip("the test model is not installed")
    yield from load_vocabulary(gemma(tmp_path_factory.mktemp("gemma")) or "")


class TestModelWithBOS(ExpandContract):
    pass


# --- BOS, and control tokens ---------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        [TextPart("hi")],
        [TextPart("<s>hi", special=True)],
        [TextPart("<s>", special=True), TextPart("hi")],
        [TokensPart((BOS,)), TextPart("hi")],
        [TextPart(""), TextPart("<s>", special=True), TextPart("h"), TextPart("i")],
    ],
)
def test_bos_is_there_once_whoever_writes_it(engine: Engine, parts: list[Part]) -> None:
    inputs = engine.expand(parts).inputs
    assert inputs == (BOS, FIRST_BYTE + ord("h"), FIRST_BYTE + ord("i"))


def test_bos_in_plain_text_is_text(engine: Engine) -> None:
    inputs = engine.expand([TextPart("<s>")]).inputs
    assert inputs == (BOS, *(FIRST_BYTE + byte for byte in b"<s>"))


def test_a_nul_counts_and_what_follows_it_too(engine: Engine) -> None:
    inputs = engine.expand([TextPart("before\0after")], add_bos=False).inputs
    assert bytes(token - FIRST_BYTE for token in inputs) == b"before\0after"


# --- borders -------------------------------------------------------------------------------


def test_borders_are_where_special_text_begins_behind_other_parts(engine: Engine) -> None:
    turn, end = TextPart("<s>u", special=True), TextPart("</s>", special=True)
    prompt = engine.expand([turn, TextPart("hello"), end, turn, TextPart("ho"), end])
    assert prompt.borders == (7, 12)
    assert [prompt.inputs[border] for border in prompt.borders] == [EOS, EOS]


@pytest.mark.parametrize(
    ("parts", "borders"),
    [
        ([], ()),
        ([TextPart("hello")], ()),
        ([TextPart("a</s>b", special=True)], ()),
        ([TextPart("a"), TextPart("</s>", special=True)], (2,)),
        ([TokensPart((9, 9)), TextPart("b", special=True), TextPart("c")], (3,)),
    ],
)
def test_borders_count_the_bos_that_is_added(
    engine: Engine, parts: list[Part], borders: tuple[int, ...]
) -> None:
    assert engine.expand(parts).borders == borders


# --- pathological text ---------------------------------------------------------------------


@pytest.mark.parametrize("text", [" ", "a", "🙂"])
def test_a_megabyte_of_one_character_is_tokenized(smollm2: Vocabulary, text: str) -> None:
    n_times = (1 << 20) // len(text.encode())
    inputs = smollm2.expand([TextPart(text * n_times)]).inputs
    assert b"".join(map(smollm2.token_bytes, inputs)) == text.encode() * n_times


def test_names_of_tokens_are_looked_for_in_a_bounded_text_only(smollm2: Vocabulary) -> None:
    name = "<|im_end|>"
    with pytest.raises(InvalidRequest, match=rf"text of \d+ bytes.*{MAX_SCANNED_BYTES}") as caught:
        smollm2.expand([TextPart(name * (MAX_SCANNED_BYTES // len(name) + 1), special=True)])
    assert caught.value.details["field"] == "prompt"
    assert len(smollm2.expand([TextPart(name * 2000, special=True)]).inputs) == 2000


def test_a_line_of_names_is_bounded(gemma3: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="or in a line"):
        gemma3.expand([TextPart("<td>" * (MAX_SCANNED_BYTES // 4 + 1))])


def test_many_lines_take_time_in_proportion(gemma3: Vocabulary) -> None:
    inputs = gemma3.expand([TextPart("a\n\n" * 20_000)], add_bos=False).inputs
    assert len(inputs) == 40_000


def test_a_text_cut_at_its_lines_has_the_same_tokens(gemma3: Vocabulary) -> None:
    choose = random.Random(1)
    bits = [
        "a",
        "\n",
        "\n\n",
        "\n\n\n",
        "\t",
        " ",
        "  ",
        "<td>",
        "word ",
        "é",
        "<b>\n",
        "\r\n",
        "1",
    ]
    for n_bits in (0, 1, 300, 1500, 3000):
        data = "".join(choose.choices(bits, k=n_bits)).encode()
        pieces = list(gemma3._pieces_of(data, False))
        assert b"".join(pieces) == data
        assert (len(pieces) > 1) == (len(data) > 2 * PIECE_SCANNED_BYTES)
        whole = gemma3._tokenize_piece(data, False).tolist()
        assert gemma3._tokenize(data.decode(), False) == whole
