import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runnerd_protocol.messages import Memory
from tests.processes import needs_model, run, running, serving

REFERENCE = "--engine=reference"


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("plan") / "socket"
    with serving(path, "layers=2", "--ctx=128"):
        yield str(path)


def planned(*arguments: str) -> Memory:
    ended = run("plan", *arguments, "--json")
    assert ended.code in (0, 71), ended
    assert ended.out.count("\n") == 1
    return memory_in(ended.out)


def memory_in(text: str) -> Memory:
    return msgspec.json.decode(text, type=Memory)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 64, "give either MODEL or --socket"),
        (["m", "--socket=s"], 64, "give either MODEL or --socket"),
        (["--socket=s", "--batch=9"], 64, "--batch does not go with --socket"),
        (["--socket=s", "--kv-type=f15"], 64, "--kv-type"),
        (["", REFERENCE, "--gpu-layers=x"], 64, "--gpu-layers x is neither a number nor auto"),
        (["", REFERENCE, "--tensor-split=1,x"], 64, "--tensor-split 1,x is neither numbers"),
        (["", REFERENCE, "--tensor-split=nan"], 64, "--tensor-split nan is neither numbers"),
        (["", REFERENCE, "--slots=0"], 78, "slots 0 is not between"),
        (["", REFERENCE, "--checkpoint-mib=-1"], 78, "checkpoint-mib -1 is not between"),
        (["x=1", REFERENCE], 78, "'x=1' is not an option"),
        (["--socket=/no/such"], 69, "nobody listens at /no/such"),
    ],
)
def test_what_is_wrong_is_said_in_a_few_lines(arguments: list[str], code: int, words: str) -> None:
    ended = run("plan", *arguments)
    assert ended.code == code, ended
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) <= 4


def test_a_plan_is_one_object_with_the_fields_of_the_protocol() -> None:
    ended = run("plan", "layers=3", REFERENCE, "--ctx=256", "--slots=2", "--json")
    assert (ended.code, ended.err) == (0, "")
    memory = memory_in(ended.out)
    assert (memory.n_ctx, memory.n_slots, memory.n_cells) == (256, 2, 512)
    assert len(memory.layers) == memory.n_layers + 1
    assert json.loads(ended.out)["fits"] is True


def test_more_context_takes_more_of_the_cache_and_no_more_weights() -> None:
    less, more = (planned("layers=2", REFERENCE, f"--ctx={n}").devices[0] for n in (256, 1024))
    assert more.kv_bytes == 4 * less.kv_bytes
    assert more.weight_bytes == less.weight_bytes


def test_without_a_terminal_a_plan_is_plain_aligned_text() -> None:
    ended = run("plan", "layers=3", REFERENCE)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    lines = ended.out.splitlines()
    assert any(line.startswith("0-2 ") for line in lines)
    assert "It fits." in lines


def test_on_a_terminal_a_plan_has_bars() -> None:
    with running("plan", "layers=3", REFERENCE, on_terminal=True) as command:
        text = command.rest()
        assert command.wait() == 0
    assert "█" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("how", ["--json", "--engine=reference"])
def test_what_does_not_fit_is_planned_all_the_same_and_has_a_status(how: str) -> None:
    ended = run("plan", "layers=1", REFERENCE, f"--ctx={2**31 - 1}", "--slots=256", how)
    assert ended.code == 71, ended
    assert '"fits":false' in ended.out or "It does not fit: it lacks" in ended.out


def test_checkpoints_and_images_come_on_top() -> None:
    assert planned("window=8", REFERENCE, "--checkpoint-mib=7").cache_bytes == 7 * 2**20


def test_a_daemon_tells_of_what_it_has_loaded(socket_path: str) -> None:
    memory = planned(f"--socket={socket_path}")
    assert (memory.n_layers, memory.n_ctx) == (2, 128)


def test_a_daemon_is_asked_for_other_sizes(socket_path: str) -> None:
    memory = planned(f"--socket={socket_path}", "--ctx=64", "--slots=2")
    assert (memory.n_layers, memory.n_ctx, memory.n_slots) == (2, 64, 2)


def test_a_daemon_plans_what_does_not_fit(socket_path: str) -> None:
    memory = planned(f"--socket={socket_path}", f"--ctx={2**31 - 1}", "--slots=256")
    assert not memory.fits
    assert memory.n_ctx_fits < memory.n_ctx


@pytest.mark.parametrize("option", ["--ctx=1", "--slots=0", "--gpu-layers=-1"])
def test_a_plan_that_a_daemon_refuses_is_one_line(option: str, socket_path: str) -> None:
    ended = run("plan", f"--socket={socket_path}", option)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("runnerd: invalid_request: ")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.llama
@needs_model
def test_a_real_model_is_planned_by_layer() -> None:
    memory = planned("smollm2", "--ctx=512")
    assert memory.fits
    assert memory.architecture == "llama"
    assert len(memory.layers) == 31
    main = memory.devices[0]
    weights = memory.input_bytes + sum(layer.weight_bytes for layer in memory.layers)
    assert main.kv_bytes == sum(layer.kv_bytes for layer in memory.layers)
    assert main.weight_bytes >= weights - 2**20


def test_a_model_that_is_not_there_has_a_status_of_its_own(tmp_path: Path) -> None:
    ended = run("plan", str(tmp_path / "no.gguf"))
    assert ended.code == 66, ended
    assert "no.gguf" in ended.err


@needs_model
@pytest.mark.parametrize("mib", [650, 800])
def test_what_fits_with_flash_attention_fits_where_that_is_left_open(mib: int) -> None:
    """A limit between what a pass takes with it and without."""
    limited = f"ulimit -v {mib * 1024}; exec {sys.executable} -m runnerd plan smollm2 --ctx 8192"
    codes = [
        subprocess.run(
            ["sh", "-c", f"{limited} --slots 1 --threads 2 --flash-attn {wanted}"],
            check=False,
            capture_output=True,
            timeout=120,
        ).returncode
        for wanted in ("on", "auto")
    ]
    assert codes == [0, 0]
