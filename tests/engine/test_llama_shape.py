import os
from typing import Literal

import pytest

from runnerd.engine.base import EngineConfig
from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.shape import check_kv_cache, kv_bytes, plan_shape, raised_to
from runnerd.errors import ConfigError, OutOfMemory


def header(n_ctx_train: int = 2048, n_embd: int = 64) -> GGUFHeader:
    sizes = {"context_length": n_ctx_train, "embedding_length": n_embd, "block_count": 2}
    metadata = {f"toy.{name}": size for name, size in sizes.items()}
    return GGUFHeader(0, 3, "toy", 0, metadata | {"toy.attention.head_count": 1})


def config(
    *,
    n_slots: int = 4,
    n_ctx: int = 512,
    n_cells: int = 0,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    kv: Literal["auto", "split", "unified"] = "auto",
    swa_full: bool = False,
) -> EngineConfig:
    return EngineConfig(
        model="",
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_cells,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        kv=kv,
        swa_full=swa_full,
    )


@pytest.mark.parametrize(("n_ctx_train", "n_ctx"), [(2048, 2048), (131072, 4096)])
def test_without_a_wish_the_context_is_what_the_model_was_trained_for_within_reason(
    n_ctx_train: int, n_ctx: int
) -> None:
    assert plan_shape(config(n_ctx=0), header(n_ctx_train)).n_ctx == n_ctx


def test_without_a_wish_the_context_of_a_slot_is_no_larger_than_all_cells() -> None:
    assert plan_shape(config(n_ctx=0, n_cells=1024), header()).n_ctx == 1024


def test_a_context_beyond_the_trained_one_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"4096.*2048"):
        plan_shape(config(n_ctx=4096), header(2048))


def test_slots_are_apart_where_there_are_cells_for_all() -> None:
    shape = plan_shape(config(n_slots=3, n_ctx=300), header())
    assert (shape.unified, shape.n_cells, shape.n_ctx_total) == (False, 900, 3 * 512)


def test_slots_share_the_cells_where_there_are_not_enough_for_all() -> None:
    shape = plan_shape(config(n_slots=3, n_ctx=300, n_cells=700), header())
    assert (shape.unified, shape.n_cells, shape.n_ctx_total) == (True, 700, 768)


def test_slots_share_the_cells_where_that_is_asked_for() -> None:
    shape = plan_shape(config(n_slots=3, n_ctx=300, kv="unified"), header())
    assert (shape.unified, shape.n_cells, shape.n_ctx_total) == (True, 900, 1024)


def test_more_cells_than_slots_can_use_are_not_made() -> None:
    assert plan_shape(config(n_slots=2, n_ctx=256, n_cells=4096), header()).n_cells == 512


def test_slots_apart_cannot_be_short_of_cells() -> None:
    with pytest.raises(ConfigError, match="1000 cells are less than 4 slots of 512"):
        plan_shape(config(n_cells=1000, kv="split"), header())


@pytest.mark.parametrize("n_slots", [0, 257])
def test_a_number_of_slots_that_llama_cpp_cannot_have_is_refused(n_slots: int) -> None:
    with pytest.raises(ConfigError, match=f"{n_slots} slots"):
        plan_shape(config(n_slots=n_slots), header())


def test_a_batch_has_a_row_for_every_slot() -> None:
    with pytest.raises(ConfigError, match="batches of 3 rows are less than 4 slots"):
        plan_shape(config(n_batch=3), header())


def test_batches_and_the_batches_within_are_no_larger_than_the_cache() -> None:
    shape = plan_shape(config(n_slots=1, n_ctx=256), header())
    assert (shape.n_batch, shape.n_ubatch) == (256, 256)


def test_there_is_a_thread_for_every_core_that_we_may_use() -> None:
    assert plan_shape(config(), header()).n_threads == len(os.sched_getaffinity(0))


def test_the_cache_is_as_large_as_all_its_cells() -> None:
    shape = plan_shape(config(n_slots=3, n_ctx=300), header(n_embd=64))
    assert kv_bytes(shape, header(n_embd=64)) == 3 * 512 * (2 * (64 + 64) * 2)


@pytest.mark.parametrize(
    ("kv", "swa_full", "n_sliding", "window"),
    [
        ("split", False, 4 * 768, 500),
        ("unified", False, 2304, 500),
        ("split", True, 4 * 2048, 0),
        ("unified", True, 8192, 500),
    ],
)
def test_a_sliding_layer_has_cells_for_the_window_and_a_pass(
    kv: Literal["split", "unified"], swa_full: bool, n_sliding: int, window: int
) -> None:
    shape = plan_shape(config(n_ctx=2048, n_ubatch=256, kv=kv, swa_full=swa_full), header())
    assert (shape.n_sliding(500), shape.window(500)) == (n_sliding, window)


@pytest.mark.parametrize("n_swa", [0, 512, 4096])
def test_a_window_that_no_slot_outgrows_is_none(n_swa: int) -> None:
    assert plan_shape(config(n_ctx=512, n_ubatch=64), header()).window(n_swa) == 0


def test_a_window_that_fits_with_a_pass_into_the_context_forgets_nothing() -> None:
    assert plan_shape(config(n_ctx=1024, n_ubatch=512), header()).window(512) == 0


def test_the_cache_is_smaller_where_layers_slide() -> None:
    sliding = {"toy.attention.sliding_window": 256, "toy.attention.sliding_window_pattern": 2}
    toy = header()
    toy = GGUFHeader(0, 3, "toy", 0, dict(toy.metadata) | sliding)
    shape = plan_shape(config(n_ctx=2048, n_ubatch=256), toy)
    assert kv_bytes(shape, toy) == 4 * (2048 + 512) * (64 + 64) * 2


def test_a_cache_larger_than_memory_is_refused_with_both_sizes() -> None:
    wide = header(n_embd=1 << 40)
    with pytest.raises(OutOfMemory, match=r"4 slots of 512 take 1\d+ bytes.*\d+ bytes of memory"):
        check_kv_cache(plan_shape(config(), wide), wide)


def test_a_cache_that_fits_is_not_refused() -> None:
    check_kv_cache(plan_shape(config(), header()), header())


def recurrent(**sizes: int | tuple[int, ...]) -> GGUFHeader:
    metadata = {f"toy.{name.replace('__', '.')}": size for name, size in sizes.items()}
    return GGUFHeader(0, 3, "toy", 0, dict(header().metadata) | metadata)


def test_a_model_that_keeps_states_takes_them_for_each_slot() -> None:
    toy = recurrent(ssm__conv_kernel=4, ssm__inner_size=128, ssm__state_size=16)
    shape = plan_shape(config(n_slots=3), toy)
    assert kv_bytes(shape, toy) == 3 * 2 * (3 * 128 + 128 * 16) * 4


def test_a_model_that_keeps_states_in_some_layers_takes_cells_in_the_others() -> None:
    toy = recurrent(shortconv__l_cache=3, attention__head_count_kv=(0, 1))
    shape = plan_shape(config(n_slots=3), toy)
    assert kv_bytes(shape, toy) == 3 * 2 * 64 * 4 + 3 * 512 * (64 + 64) * 2


def test_a_model_that_keeps_cells_in_every_nth_layer_takes_them_there() -> None:
    sizes = {"ssm__inner_size": 128, "ssm__state_size": 16}
    toy = recurrent(**sizes, attention__head_count_kv=1, full_attention_interval=2)
    shape = plan_shape(config(n_slots=3), toy)
    assert kv_bytes(shape, toy) == 3 * 128 * 16 * 4 + 3 * 512 * (64 + 64) * 2


def test_a_layer_that_only_feeds_forward_keeps_nothing() -> None:
    sizes = {"ssm__inner_size": 128, "ssm__state_size": 16}
    toy = recurrent(**sizes, attention__head_count_kv=(0, 0), feed_forward_length=(0, 256))
    assert kv_bytes(plan_shape(config(n_slots=3), toy), toy) == 3 * 128 * 16 * 4


def test_a_model_that_does_not_say_which_layers_keep_states_is_not_estimated() -> None:
    toy = recurrent(ssm__inner_size=128, attention__head_count_kv=2)
    assert kv_bytes(plan_shape(config(n_slots=3), toy), toy) is None


def test_states_larger_than_memory_are_refused() -> None:
    toy = recurrent(ssm__inner_size=1 << 30, ssm__state_size=1 << 10)
    with pytest.raises(OutOfMemory, match=r"4 slots of 512 take \d+ bytes"):
        check_kv_cache(plan_shape(config(), toy), toy)


@pytest.mark.parametrize(
    ("n_batch", "n_ubatch", "n_rows", "raised"),
    [
        (256, 128, 0, (256, 128)),
        (256, 128, 128, (256, 128)),
        (256, 128, 200, (256, 200)),
        (64, 32, 300, (304, 300)),
        (64, 32, 510, (514, 510)),
    ],
)
def test_batches_are_raised_to_what_has_to_share_a_pass_and_never_lowered(
    n_batch: int, n_ubatch: int, n_rows: int, raised: tuple[int, int]
) -> None:
    shape = raised_to(plan_shape(config(n_batch=n_batch, n_ubatch=n_ubatch), header()), n_rows)
    assert (shape.n_batch, shape.n_ubatch) == raised


def test_batches_are_raised_to_no_more_than_the_cache() -> None:
    shape = raised_to(plan_shape(config(n_slots=2, n_ctx=256, n_cells=256), header()), 255)
    assert (shape.n_batch, shape.n_ubatch) == (256, 256)
