"""What a plan's process is told: the daemon's own settings, and the sizes that a client names."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.core import TyperGroup
from typer.main import get_command

from runnerd.cli import app
from runnerd.commands.model_options import engine_config
from runnerd.config import Config, ImageLimits
from runnerd.engine.base import EngineConfig
from runnerd.errors import InvalidRequest
from runnerd.plan_options import field_at_fault, overrides_of, plan_arguments, planned_config
from runnerd_protocol.messages import Plan

LLAMA = EngineConfig("m.gguf")

names = st.text("abc=,.-", min_size=1, max_size=5)
"""Of models and adapters, as somebody would write them who wants to be taken for an option."""

DRAWN: dict[str, st.SearchStrategy[object]] = {
    "model": st.sampled_from(["m.gguf", "--json", "-", "a b.gguf", "layers=2,window=8"]),
    "engine": st.sampled_from(["llama", "reference"]),
    "n_slots": st.integers(1, 256),
    "n_ctx": st.integers(0, 2**20),
    "n_cells": st.integers(0, 2**20),
    "n_batch": st.just(2048),
    "n_ubatch": st.integers(1, 2048),
    "n_threads": st.integers(0, 8),
    "kv": st.sampled_from(["auto", "split", "unified"]),
    "flash_attn": st.sampled_from(["auto", "on", "off"]),
    "kv_type": st.sampled_from(["f16", "q8_0", "q4_0"]),
    "swa_full": st.booleans(),
    "adapters": st.lists(
        st.tuples(names.map(lambda name: f"a{name}".replace("=", "")), names), max_size=3
    ).map(tuple),
    "n_embed": st.integers(0, 2**20),
    "mmproj": st.sampled_from(["", "eyes.gguf"]),
    "n_image_rows": st.integers(0, 1000),
    "n_gpu_layers": st.none() | st.integers(0, 100),
    "devices": st.none()
    | st.lists(st.sampled_from(["0000:01:00.0", "CUDA1"]), unique=True).map(tuple),
    "tensor_split": st.lists(st.floats(0, 100), max_size=3).map(tuple),
    "reserve_bytes": st.integers(0, 2**20).map(lambda n: n * 2**20),
}
configs = st.builds(EngineConfig, **DRAWN)


def parsed(arguments: list[str]) -> EngineConfig:
    """Return the configuration that the command makes of its arguments."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    command, *rest = arguments
    return engine_config(group.commands[command].make_context(command, rest).params)


@settings(deadline=None)
@given(config=configs)
def test_the_process_plans_for_the_daemons_own_configuration(config: EngineConfig) -> None:
    assert parsed(plan_arguments(Config(config))) == config


def test_no_field_of_a_configuration_is_left_out_here() -> None:
    assert set(DRAWN) == {field.name for field in fields(EngineConfig)}


def test_a_plan_is_printed_as_json() -> None:
    assert plan_arguments(Config(LLAMA))[:2] == ["plan", "--json"]


def test_it_is_told_what_the_daemons_caches_may_hold() -> None:
    images = ImageLimits(store_bytes=3 * 2**20, cache_bytes=5 * 2**20)
    arguments = plan_arguments(Config(LLAMA, checkpoint_mib=7, images=images))
    assert {"--checkpoint-mib=7", "--image-store-mib=3", "--image-cache-mib=5"} <= set(arguments)


def test_nothing_named_is_planned_as_configured() -> None:
    assert overrides_of(Plan(1)) == {}
    assert planned_config(LLAMA, Plan(1)) == LLAMA


def test_sizes_that_are_named_take_the_place_of_those_configured() -> None:
    asked = Plan(1, n_ctx=100, n_slots=2, kv_type="q8_0", n_gpu_layers=0)
    assert overrides_of(asked) == {
        "n_ctx": 100,
        "n_slots": 2,
        "kv_type": "q8_0",
        "n_gpu_layers": 0,
    }
    planned = planned_config(LLAMA, asked)
    assert planned == replace(LLAMA, n_ctx=100, n_slots=2, kv_type="q8_0", n_gpu_layers=0)


def test_no_layers_on_devices_is_a_size_of_its_own() -> None:
    config = replace(LLAMA, n_gpu_layers=5)
    assert planned_config(config, Plan(1, n_gpu_layers=0)).n_gpu_layers == 0
    assert planned_config(config, Plan(1, n_ctx=9)).n_gpu_layers == 5


def test_an_over_committed_cache_is_no_larger_than_its_requests() -> None:
    config = replace(LLAMA, n_ctx=1000, n_cells=3000)
    assert planned_config(config, Plan(1, n_slots=2)).n_cells == 2000
    assert planned_config(config, Plan(1, n_ctx=500)).n_cells == 2000
    assert planned_config(config, Plan(1, n_ctx=900)).n_cells == 3000


@pytest.mark.parametrize(
    ("config", "asked", "field", "limit"),
    [
        (replace(LLAMA, n_batch=64), Plan(1, n_slots=65), "n_slots", "at most 64"),
        (replace(LLAMA, n_cells=3000), Plan(1, n_ctx=3001), "n_ctx", "at most 3000"),
        (replace(LLAMA, flash_attn="off"), Plan(1, kv_type="q4_0"), "kv_type", "f16"),
    ],
)
def test_a_size_against_the_configuration_is_refused_by_its_name(
    config: EngineConfig, asked: Plan, field: str, limit: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        planned_config(config, asked)
    assert caught.value.details["field"] == field
    assert str(caught.value.details["limit"]).startswith(limit)


@pytest.mark.parametrize(
    ("overrides", "words", "field"),
    [
        ({"n_slots": 2}, "whatever it says", "n_slots"),
        (
            {"n_slots": 2, "n_ctx": 99999},
            "a context of 99999: the model was trained for 8192",
            "n_ctx",
        ),
        ({"n_slots": 300, "kv_type": "f16"}, "300 slots: llama.cpp has 1 to 256", "n_slots"),
        ({"n_ctx": 9, "kv_type": "q8_0"}, "kv-type q8_0 needs flash attention", "kv_type"),
        (
            {"n_ctx": 9, "n_gpu_layers": 5},
            "gpu-layers 5 with no devices to take them",
            "n_gpu_layers",
        ),
    ],
)
def test_an_error_is_put_down_to_the_size_that_it_is_about(
    overrides: dict[str, int | str], words: str, field: str
) -> None:
    assert field_at_fault(overrides, words) == field
