"""Plans of the reference engine against the arrays that it makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.engine import plan_engine
from runnerd.engine.base import EngineConfig
from runnerd.engine.memory_plan import MemoryPlan
from runnerd.engine.reference.cache import Memory
from runnerd.engine.reference.limits import plan_limits
from runnerd.engine.reference.model import Model
from runnerd.engine.reference.options import ReferenceOptions, parse_options
from runnerd.engine.reference.plan import plan_fitting, plan_reference
from runnerd.errors import BadModel, ConfigError, OutOfMemory


def config(model: str = "", *, n_slots: int = 2, n_ctx: int = 64) -> EngineConfig:
    return EngineConfig(model=model, engine="reference", n_slots=n_slots, n_ctx=n_ctx)


@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
    window=st.integers(0, 16),
    recurrent=st.booleans(),
    n_slots=st.integers(1, 4),
    n_ctx=st.integers(1, 128),
)
def test_a_plan_is_the_size_of_all_arrays(
    layers: int, heads: int, window: int, recurrent: bool, n_slots: int, n_ctx: int
) -> None:
    options = ReferenceOptions(
        layers=layers, heads=heads, dim=8 * heads, window=window, recurrent=recurrent
    )
    settings = config(n_slots=n_slots, n_ctx=n_ctx)
    plan = plan_reference(settings, options)
    (memory,) = plan.devices
    cache = Memory(options, plan_limits(settings, options))
    arrays = (*cache.arrays, cache.states)
    assert memory.kv_bytes == sum(layer.kv_bytes for layer in plan.layers)
    assert memory.kv_bytes == sum(array.nbytes for array in arrays)
    model = Model(options)
    weights = model.n_params * 8 + model.base.table.nbytes + model.phases.nbytes
    of_layers = sum(layer.weight_bytes for layer in plan.layers)
    assert memory.weight_bytes == of_layers + plan.input_bytes == weights


def test_there_are_checkpoints_where_going_back_takes_them() -> None:
    assert plan_engine(config("window=8")).has_checkpoints
    assert plan_engine(config("recurrent=1")).has_checkpoints
    assert not plan_engine(config()).has_checkpoints


def test_layers_that_slide_are_named() -> None:
    plan = plan_engine(config("layers=3,window=8"))
    assert [layer.slides for layer in plan.layers] == [True, True, False, False]


def test_the_largest_context_that_fits_is_in_proportion_to_what_is_free() -> None:
    plan = plan_engine(config())
    assert plan.fits
    more = plan_engine(config(n_ctx=2 * plan.n_ctx_fits))
    assert not more.fits


def test_a_context_that_does_not_fit_is_planned_and_refused_by_a_load() -> None:
    n_ctx = 2 * plan_engine(config()).n_ctx_fits
    settings, options = config(n_ctx=n_ctx), parse_options("")
    with pytest.raises(OutOfMemory, match=r"2 slots of \d+ take") as caught:
        plan_fitting(settings, options)
    told = caught.value.plan
    assert isinstance(told, MemoryPlan)
    assert told.failed is not None
    assert f"a ctx of {told.n_ctx_fits} would fit" in str(caught.value)
    assert plan_engine(settings).n_ctx == n_ctx


def test_what_a_load_would_refuse_is_refused() -> None:
    with pytest.raises(BadModel):
        plan_engine(config("fail_load=1"))
    with pytest.raises(ConfigError):
        plan_engine(config("unknown=1"))
