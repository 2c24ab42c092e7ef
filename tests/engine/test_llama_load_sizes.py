"""What is read out of llama.cpp's log of a load."""

from hypothesis import given
from hypothesis import strategies as st

from runnerd.engine.llama.probe_log import MIB, ROUNDING_BYTES, CacheSize, read_sizes

ON_THE_CPU = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 1
load_tensors: layer   1 assigned to device CPU, is_swa = 0
load_tensors: layer   2 assigned to device CPU, is_swa = 0
load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
load_tensors:   CPU_REPACK model buffer size =    12.66 MiB
llama_context:        CPU  output buffer size =     4.00 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 2048 cells
llama_kv_cache: layer   0: filtered
llama_kv_cache: layer   1: dev = CPU
llama_kv_cache:        CPU KV buffer size =     8.00 MiB
llama_kv_cache: size =    8.00 MiB (  2048 cells,   1 layers,  4/4 seqs), K (f16):    4.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
llama_kv_cache: layer   0: dev = CPU
llama_kv_cache: layer   1: filtered
llama_kv_cache:        CPU KV buffer size =     4.00 MiB
llama_kv_cache: size =    4.00 MiB (  1024 cells,   1 layers,  4/4 seqs), K (f16):    2.00 MiB
sched_reserve:        CPU compute buffer size =    20.77 MiB
"""

ON_TWO_DEVICES = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device CUDA0, is_swa = 0
load_tensors: layer   2 assigned to device CUDA1, is_swa = 0
load_tensors:   CPU_Mapped model buffer size =    30.00 MiB
load_tensors:        CUDA0 model buffer size =    10.00 MiB
load_tensors:        CUDA1 model buffer size =    40.00 MiB
llama_context:  CUDA_Host  output buffer size =     0.75 MiB
llama_kv_cache:        CPU KV buffer size =     1.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =     2.00 MiB
sched_reserve:      CUDA0 compute buffer size =   120.50 MiB
sched_reserve:      CUDA1 compute buffer size =   300.25 MiB
sched_reserve:  CUDA_Host compute buffer size =     6.01 MiB
"""

OF_STATES = """\
llama_memory_recurrent, layer   0: dev = CPU
llama_memory_recurrent: layer   1: skipped
llama_memory_recurrent:        CPU RS buffer size =     0.50 MiB
llama_memory_recurrent: size =    0.50 MiB (     4 cells,   3 layers,  4 seqs  0 rs_seq), R (f32)
"""


def test_a_cache_has_the_layers_that_are_named_before_its_size() -> None:
    sizes = read_sizes(ON_THE_CPU.splitlines())
    assert sizes.caches == [CacheSize(8 * MIB, 2048, (1,)), CacheSize(4 * MIB, 1024, (0,))]


def test_layers_have_devices_and_some_slide() -> None:
    sizes = read_sizes(ON_TWO_DEVICES.splitlines())
    assert sizes.devices == {0: "CPU", 1: "CUDA0", 2: "CUDA1"}
    assert sizes.sliding == set()
    assert read_sizes(ON_THE_CPU.splitlines()).sliding == {0}


def test_buffers_of_caches_add_up() -> None:
    assert read_sizes(ON_THE_CPU.splitlines()).kv == {"CPU": 12 * MIB}


def test_copies_of_weights_are_told_from_the_mapped_file() -> None:
    assert read_sizes(ON_THE_CPU.splitlines()).copied_bytes == round(12.66 * MIB)
    assert read_sizes(ON_TWO_DEVICES.splitlines()).copied_bytes == 0


def test_buffers_are_kept_by_their_names() -> None:
    sizes = read_sizes(ON_TWO_DEVICES.splitlines())
    assert sizes.compute == {
        "CUDA0": round(120.5 * MIB),
        "CUDA1": round(300.25 * MIB),
        "CUDA_Host": round(6.01 * MIB),
    }
    assert sizes.output == {"CUDA_Host": round(0.75 * MIB)}


def test_of_compute_buffers_that_are_made_again_the_last_ones_count() -> None:
    line = "sched_reserve:        CPU compute buffer size =    {} MiB"
    assert read_sizes([line.format("9.00"), line.format("2.00")]).compute == {"CPU": 2 * MIB}


def test_states_are_a_cache_of_the_layers_that_keep_them() -> None:
    (cache,) = read_sizes(OF_STATES.splitlines()).caches
    assert cache == CacheSize(MIB // 2, 4, (0,), has_states=True)


@given(st.lists(st.text()))
def test_whatever_else_is_said_does_no_harm(lines: list[str]) -> None:
    known = OF_STATES.splitlines()
    assert read_sizes([*lines, *known]).caches == read_sizes(known).caches


@given(st.integers(0, 2**45))
def test_a_size_is_exact_but_for_its_rounding(n_bytes: int) -> None:
    line = f"sched_reserve:        CPU compute buffer size = {n_bytes / MIB:8.2f} MiB"
    assert abs(read_sizes([line]).compute["CPU"] - n_bytes) <= ROUNDING_BYTES
