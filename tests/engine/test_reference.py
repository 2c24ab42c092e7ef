from collections.abc import Iterator
from functools import partial
from typing import Literal

import pytest
from msgspec.structs import replace

from runnerd.core.prompt import Group, Part, Prompt, TextPart, TokensPart, media_key
from runnerd.engine.base import Engine, EngineConfig
from runnerd.engine.reference import ReferenceEngine, ReferenceOptions, parse_options
from runnerd.engine.reference.media import Medium
from runnerd.engine.reference.tokenizer import BOS, END, IM_END, IM_START
from runnerd.errors import BadModel, ConfigError, InvalidRequest, LoadCancelled, OutOfMemory
from tests.engine.contract import EngineContract, MemoryContract
from tests.engine.contract_adapters import TINY, AdapterContract
from tests.engine.driving import MakeEngine
from tests.engine.reference_builders import SMALL, reference, special


@pytest.fixture(scope="module")
def make_engine() -> MakeEngine:
    return reference


@pytest.fixture(scope="module")
def special_name() -> str:
    return "<|im_end|>"


@pytest.fixture(scope="module")
def engine(make_engine: MakeEngine) -> Iterator[Engine]:
    with make_engine() as engine:
        yield engine


class TestReferenceContract(EngineContract):
    pass


KINDS = {
    "plain": SMALL,
    "window": replace(SMALL, window=24),
    "window with spare cells": replace(SMALL, window=24, spare=10),
    "window everywhere": replace(SMALL, window=24, full_layers=0),
    "recurrent": replace(SMALL, layers=1, recurrent=True),
    "hybrid": replace(SMALL, recurrent=True),
    "hybrid with a window": replace(SMALL, layers=3, recurrent=True, window=24),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv", ["split", "unified"])
class TestKindsOfReference(MemoryContract):
    @pytest.fixture
    @staticmethod
    def make_engine(kind: str, kv: Literal["split", "unified"]) -> MakeEngine:
        return partial(reference, KINDS[kind], kv=kv, n_ubatch=16)

    @pytest.fixture
    @staticmethod
    def engine(make_engine: MakeEngine) -> Iterator[Engine]:
        with make_engine() as engine:
            yield engine


class TestReferenceAdapters(AdapterContract):
    @pytest.fixture
    @staticmethod
    def adapted() -> Iterator[Engine]:
        with reference(adapters=(TINY,)) as engine:
            yield engine


# --- tokens and images ---------------------------------------------------------------------


def test_a_token_is_a_byte_of_the_text(engine: Engine) -> None:
    assert engine.expand([TextPart("né")]).inputs == (BOS, 0x6E, 0xC3, 0xA9)


def test_special_text_names_the_control_tokens() -> None:
    prompt = special("<bos>a<end><|im_start|><|im_end|><unknown>")
    assert prompt.inputs == (BOS, ord("a"), END, IM_START, IM_END, *b"<unknown>")


def test_bos_in_special_text_is_not_doubled_and_groups_stay_in_place(engine: Engine) -> None:
    prompt = engine.expand([TextPart("<bos>x<image:2>", special=True)])
    assert prompt.inputs[:2] == (BOS, ord("x"))
    assert [(group.start, group.stop) for group in prompt.groups] == [(2, 4)]


def test_tokens_and_text_parts_keep_their_order(engine: Engine) -> None:
    parts: list[Part] = [TokensPart((1, 2)), TextPart("a"), TokensPart((IM_END,)), TextPart("b")]
    assert engine.expand(parts, add_bos=False).inputs == (1, 2, ord("a"), IM_END, ord("b"))


@pytest.mark.parametrize(
    ("name", "n_rows", "n_pos", "one_pass"),
    [
        ("<image:12>", 12, 12, True),
        ("<image:12:red>", 12, 12, True),
        ("<image:12:4>", 12, 4, True),
        ("<image:12:4:red>", 12, 4, True),
        ("<image:12:causal>", 12, 12, False),
        ("<image:12:4:causal:red>", 12, 4, False),
    ],
)
def test_an_image_is_a_group_of_rows(name: str, n_rows: int, n_pos: int, one_pass: bool) -> None:
    prompt = special(f"a{name}b")
    (group,) = prompt.groups
    assert group == Group(1, 1 + n_rows, n_pos, group.media_id, one_pass)
    keys = tuple(media_key(group.media_id, row) for row in range(n_rows))
    assert prompt.inputs == (ord("a"), *keys, ord("b"))


def test_the_media_id_says_what_the_image_is() -> None:
    (group,) = special("<image:12:4:causal:red>").groups
    assert Medium.of_id(group.media_id) == Medium(group.media_id, 12, 4, one_pass=False)


def test_images_share_inputs_where_they_are_the_same_and_nowhere_else() -> None:
    names = ["3:red", "3:blue", "4:red", "3:2:red", "3:causal:red", "3"]
    prompts = [special(f"<image:{name}>") for name in names]
    assert len({key for prompt in prompts for key in prompt.inputs}) == 3 + 3 + 4 + 3 + 3 + 3
    assert special("<image:3:red>") == prompts[0]


def test_where_images_are_causal_none_is_one_pass() -> None:
    with reference(ReferenceOptions(non_causal=False)) as engine:
        (group,) = engine.expand([TextPart("<image:3>", special=True)]).groups
    assert not group.one_pass


def test_plain_text_is_never_an_image(engine: Engine) -> None:
    prompt = engine.expand([TextPart("<image:3>")], add_bos=False)
    assert prompt == Prompt(tuple(b"<image:3>"))


@pytest.mark.parametrize("name", ["<image:0>", "<image:3:0>", "<image:3:4>", "<image:32768>"])
def test_an_impossible_image_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"prompt is {name}, expected an image of 1 to 32767"):
        special(name)


@pytest.mark.parametrize("name", [f"<image:{'9' * 5000}>", f"<image:1:{'9' * 5000}>"])
def test_an_image_with_more_digits_than_a_number_may_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        special(name)
    assert caught.value.details["value"] == name[:64]


# --- options -------------------------------------------------------------------------------


def test_no_options_are_the_defaults() -> None:
    assert parse_options("") == ReferenceOptions()


def test_options_are_read_by_name() -> None:
    assert parse_options("layers=1,window=8,shift=0,end_bias=-7,nan_seq=3") == ReferenceOptions(
        layers=1, window=8, shift=False, end_bias=-7, nan_seq=3
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=99", r"layers=99: .*<= 16"),
        ("window=-1", r"window=-1: .*>= 0"),
        ("dim=many", r"dim=many: .*int"),
        ("shift=maybe", r"shift=maybe: .*bool"),
        ("layers=", r"layers=: .*int"),
        ("speed=3", r"'speed=3' is not an option.*layers, dim"),
        ("layers", r"'layers' is not an option"),
        ("layers=1,", r"'' is not an option"),
        ("layers=1,layers=2", r"layers is given twice: 1, 2"),
        ("dim=20,heads=4", r"dim=20 must be a multiple of 2 \* heads = 8"),
    ],
)
def test_a_bad_option_is_refused_with_key_value_and_what_is_allowed(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(text)


# --- limits and loading --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ctx", "n_cells", "cells", "expected"),
    [
        (0, 0, 0, (512, 1024)),
        (64, 0, 0, (64, 128)),
        (64, 100, 0, (64, 100)),
        (64, 0, 90, (64, 90)),
        (64, 100, 90, (64, 100)),
        (64, 0, 1000, (64, 128)),
    ],
)
def test_limits_come_from_configuration_then_options(
    n_ctx: int, n_cells: int, cells: int, expected: tuple[int, int]
) -> None:
    options = ReferenceOptions(cells=cells)
    with reference(options, n_slots=2, n_ctx=n_ctx, n_cells=n_cells) as engine:
        limits = engine.limits
    assert (limits.n_ctx, limits.n_cells) == expected
    assert (limits.n_slots, limits.n_batch, limits.n_ubatch) == (2, 128, 64)


@pytest.mark.parametrize("options", [ReferenceOptions(), ReferenceOptions(layers=0, dim=512)])
def test_a_context_larger_than_memory_is_refused_before_it_is_made(
    options: ReferenceOptions,
) -> None:
    with pytest.raises(OutOfMemory, match=r"4 slots of 2147483647 .*; a ctx of \d+ would fit"):
        with reference(options, n_ctx=2**31 - 1):
            pass


@pytest.mark.parametrize("shift", [True, False])
def test_the_option_says_whether_the_cache_can_shift(shift: bool) -> None:
    with reference(ReferenceOptions(shift=shift)) as engine:
        assert engine.limits.can_shift == shift


def load(options: str, *, stop_at: tuple[str, float] | None = None) -> list[tuple[str, float]]:
    reports: list[tuple[str, float]] = []

    def progress(phase: str, fraction: float) -> bool:
        reports.append((phase, fraction))
        return (phase, fraction) != stop_at

    config = EngineConfig(model=options, engine="reference")
    ReferenceEngine(config, parse_options(options), progress).close()
    return reports


def test_a_load_reports_its_phases_each_from_nothing_to_all() -> None:
    reports = load("")
    phases = list(dict.fromkeys(phase for phase, _ in reports))
    assert phases == ["open", "weights", "context", "warm-up"]
    for phase in phases:
        fractions = [fraction for reported, fraction in reports if reported == phase]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("stop_at", [("open", 0.0), ("weights", 0.5), ("warm-up", 1.0)])
def test_a_load_stops_where_progress_says_so(stop_at: tuple[str, float]) -> None:
    with pytest.raises(LoadCancelled, match=stop_at[0]):
        load("", stop_at=stop_at)


def test_a_load_fails_on_demand() -> None:
    with pytest.raises(BadModel, match="fail_load=1"):
        load("fail_load=1")
