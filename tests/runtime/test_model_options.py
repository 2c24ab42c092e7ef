import inspect
from dataclasses import fields
from math import inf

import pytest

from runnerd.commands import model_options as options
from runnerd.commands.failure import CommandFailed
from runnerd.commands.plan import plan
from runnerd.commands.serve import serve
from runnerd.engine.base import EngineConfig

NAMES = {field.name for field in fields(options.EngineOptions)} - {"model"}


def configured(**changed: object) -> EngineConfig:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(serve).parameters.items()
        if name in NAMES
    }
    return options.engine_config({"model": "m", **defaults, **changed})


def test_plan_has_the_options_of_serve_with_the_same_defaults() -> None:
    of_serve, of_plan = inspect.signature(serve).parameters, inspect.signature(plan).parameters
    assert set(of_serve) >= NAMES
    for name in NAMES | {"checkpoint_mib", "image_store_mib", "image_cache_mib"}:
        assert of_plan[name].default == of_serve[name].default, name
        assert of_plan[name].annotation == of_serve[name].annotation, name


def test_without_options_the_configuration_is_the_default_one() -> None:
    assert configured() == EngineConfig("m")


@pytest.mark.parametrize(("text", "n_layers"), [("auto", None), ("0", 0), ("33", 33)])
def test_layers_are_a_number_or_left_to_the_placement(text: str, n_layers: int | None) -> None:
    assert configured(gpu_layers=text).n_gpu_layers == n_layers


@pytest.mark.parametrize(
    ("text", "devices"),
    [("all", None), ("none", ()), ("CUDA0", ("CUDA0",)), ("a,b", ("a", "b"))],
)
def test_devices_are_ids_or_all_or_none(text: str, devices: tuple[str, ...] | None) -> None:
    assert configured(devices=text).devices == devices


@pytest.mark.parametrize(("text", "shares"), [("auto", ()), ("3", (3.0,)), ("1,2.5", (1.0, 2.5))])
def test_shares_are_numbers(text: str, shares: tuple[float, ...]) -> None:
    assert configured(tensor_split=text).tensor_split == shares


@pytest.mark.parametrize("text", ["", "1,", "x", "nan", str(inf)])
def test_shares_that_are_no_numbers_are_named(text: str) -> None:
    with pytest.raises(CommandFailed, match="--tensor-split"):
        configured(tensor_split=text)


def test_a_small_batch_is_enough_to_say() -> None:
    assert configured(batch=8).n_ubatch == 8
