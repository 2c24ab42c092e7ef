from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from runnerd.commands.memory_table import memory_view
from runnerd.commands.memory_text import layer_groups, memory_lines, verdict
from runnerd_protocol.messages import FailedAllocation, LayerMemory, Memory
from tests.some_memory import MIB, some_device, some_layer, some_memory

HOSTILE = "[red]\x1b[2J\nx"


def lines(memory: Memory) -> str:
    return "\n".join(memory_lines(memory))


def view(memory: Memory, width: int = 80) -> str:
    console = Console(width=width, file=StringIO())
    with console.capture() as shown:
        console.print(memory_view(memory, console))
    return shown.get()


# --- layers ------------------------------------------------------------------------------------


def test_layers_that_are_alike_are_one_group() -> None:
    groups = layer_groups(some_memory().layers)
    assert [group.numbers for group in groups] == ["0-2", "output"]


def test_layers_that_alternate_are_two_groups() -> None:
    layers = [some_layer(slides=number % 3 != 2) for number in range(8)]
    groups = layer_groups([*layers, some_layer()])
    assert [(group.numbers, group.remark) for group in groups] == [
        ("0-1, 3-4, 6-7", "sliding window"),
        ("2, 5", ""),
        ("output", ""),
    ]


layers = st.builds(
    LayerMemory, st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 2), st.booleans()
)


@given(st.lists(layers, min_size=1, max_size=40))
def test_every_layer_is_in_one_group_of_its_like(layers: list[LayerMemory]) -> None:
    seen = {}
    *groups, last = layer_groups(layers)
    for group in groups:
        for part in group.numbers.split(", "):
            start, _, end = part.partition("-")
            for number in range(int(start), int(end or start) + 1):
                assert number not in seen
                seen[number] = group.layer
    assert [seen[number] for number in range(len(layers) - 1)] == layers[:-1]
    assert last.layer == layers[-1]


# --- words -------------------------------------------------------------------------------------


def test_the_lines_tell_each_part_the_sum_and_the_room() -> None:
    text = lines(some_memory())
    for part in (
        "  weights       90.0 MiB",
        "  KV cache     180.0 MiB",
        "  needed       300.0 MiB",
    ):
        assert part in text
    assert "of 3.5 GiB: 4.0 GiB free of 8.0 GiB, 512.0 MiB stay free" in text


def test_what_would_fit_is_said() -> None:
    assert verdict(some_memory(n_ctx_fits=8192)) == [
        "It fits.",
        "The largest context that fits is 8192 tokens for each of 4 slots (--ctx 8192).",
    ]


def test_what_is_lacking_is_said_by_device() -> None:
    devices = (some_device(free_mib=700), some_device("cuda0"))
    said = verdict(some_memory(*devices, fits=False, n_gpu_layers=4, n_gpu_layers_fit=2))
    assert said == [
        "It does not fit: it lacks 112.0 MiB on cpu.",
        "No context fits with 4 slots.",
        "4 of 4 layers go to devices, 2 fit (--gpu-layers 2).",
    ]


def test_a_load_that_has_failed_names_what_it_wanted() -> None:
    failed = FailedAllocation("KV cache", "cpu", 180 * MIB)
    assert verdict(some_memory(failed=failed))[0] == (
        "The load ran out of memory for KV cache on cpu: 180.0 MiB."
    )


def test_memory_below_zero_is_shown_as_what_it_is() -> None:
    text = lines(some_memory(some_device(free_mib=-100), fits=False))
    assert "of 0 B: -100.0 MiB free of 8.0 GiB" in text


def test_what_a_daemon_says_steers_no_terminal() -> None:
    memory = some_memory(some_device(HOSTILE), model=HOSTILE, architecture=HOSTILE)
    for text in (lines(memory), view(memory)):
        assert "\x1b" not in text
        assert "[red]" in text


# --- on a terminal -----------------------------------------------------------------------------


def test_a_table_has_the_same_facts_and_bars() -> None:
    text = view(some_memory())
    assert "180.0 MiB" in text
    assert "█████" in text
    assert "0-2" in text
    assert "It fits." in text


def test_a_table_is_never_wider_than_its_terminal() -> None:
    for width in range(4, 120, 7):
        text = view(some_memory(some_device("0000:01:00.0")), width)
        assert all(len(line) <= width for line in text.splitlines())
