"""The report of a load that found too little memory, by what llama.cpp says of it."""

import pytest

from runnerd.engine.llama.load_memory import failed_allocation, reported, smaller_n_ctx
from runnerd.engine.memory_plan import FailedAllocation, MemoryPlan
from runnerd.errors import OutOfMemory
from tests.memory_plans import small_plan as some_plan

pytestmark = pytest.mark.llama


@pytest.mark.parametrize(
    ("words", "failed"),
    [
        (
            "alloc_tensor_range: failed to allocate CPU buffer of size 188743680; "
            "llama_init_from_model: failed to allocate buffer for kv cache",
            FailedAllocation("KV cache", "cpu", 188743680),
        ),
        (
            "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 16265248; "
            "graph_reserve: failed to allocate compute buffers",
            FailedAllocation("compute buffer", "CUDA0", 16265248),
        ),
        ("unable to allocate CPU_Mapped buffer", FailedAllocation("weights", "", 0)),
    ],
)
def test_what_failed_is_read_from_llama_cpps_words(words: str, failed: FailedAllocation) -> None:
    assert failed_allocation(words, "weights") == failed


def test_an_error_gets_the_plan_and_says_what_would_fit() -> None:
    plan = some_plan()
    with pytest.raises(
        OutOfMemory, match=r"bytes are needed, \d+ were free; .*would fit"
    ) as caught:
        with reported("context", lambda: plan):
            raise OutOfMemory("no context")
    told = caught.value.plan
    assert isinstance(told, MemoryPlan)
    assert told.failed == FailedAllocation("context")
    assert told.layers == plan.layers
    fits = f"a ctx of {told.n_ctx_fits} would fit" if told.n_ctx_fits else "no ctx would fit"
    assert str(caught.value).endswith(fits)


def test_a_memory_error_of_ours_is_reported_as_well() -> None:
    with pytest.raises(OutOfMemory, match="no memory for warm-up") as caught:
        with reported("warm-up", some_plan):
            raise MemoryError("rows")
    assert isinstance(caught.value.plan, MemoryPlan)


def test_what_fits_is_less_than_what_failed() -> None:
    assert smaller_n_ctx(some_plan()) < some_plan().n_ctx
