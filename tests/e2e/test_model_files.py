"""Files that are no models, or are none any more: the daemon says what is wrong, and where."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

from runnerd.launcher import ChildDied, launch
from tests.engine.gguf_files import ARCHITECTURE, GGUFFile, tensor
from tests.engine.llama_builders import MODEL
from tests.engine.test_gguf_parts import write_part
from tests.processes import run

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

BAD, MISSING = 65, 66
Make = Callable[[Path], Path]


def written(content: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(content)
        return path

    return make


def folder_itself(folder: Path) -> Path:
    return folder


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def circle(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def without_its_end(folder: Path) -> Path:
    content = Path(MODEL or "").read_bytes()
    return written(content[:-1000])(folder)


def without_a_part(folder: Path) -> Path:
    return Path(write_part(folder, 1, 3))


def later_part(folder: Path) -> Path:
    return Path(write_part(folder, 2, 2))


def with_layers(n_layers: int) -> Make:
    """Change what the test model says of its layers."""
    key = b"llama.block_count"

    def make(folder: Path) -> Path:
        content = bytearray(Path(MODEL or "").read_bytes())
        at = content.index(key) + len(key) + 4  # behind the type of the value
        content[at : at + 4] = n_layers.to_bytes(4, "little")
        return written(bytes(content))(folder)

    return make


TOY = GGUFFile((ARCHITECTURE,), (tensor("t", (8,)),), bytes(32))


@pytest.mark.parametrize(
    ("make", "exit_code", "words"),
    [
        (folder_itself, MISSING, "not a regular file"),
        (fifo, MISSING, "not a regular file"),
        (circle, MISSING, "(errno 40)"),
        (written(b""), BAD, "the file is empty"),
        (written(b"PK\x03\x04 and more"), BAD, "not a GGUF file: begins with b'PK"),
        (written(b"GGUF" + (3).to_bytes(4, "big") + bytes(64)), BAD, "big-endian?"),
        (written(TOY.to_bytes()), BAD, "unknown model architecture: 'toy'"),
        (with_layers(0), BAD, "0 layers, llama.cpp has 1 to 512"),
        (with_layers(513), BAD, "513 layers, llama.cpp has 1 to 512"),
        (without_its_end, BAD, "cut short in tensor 'output_norm.weight'"),
        (without_a_part, MISSING, "file 2 of 3 of the model"),
        (later_part, BAD, "file 2 of 2 of a model: give the first one"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_path(
    make: Make, exit_code: int, words: str, tmp_path: Path
) -> None:
    model, path = make(tmp_path), tmp_path / "s"
    ended = run("serve", str(model), f"--socket={path}", "--log-format=json", "--threads=1")
    assert ended.code == exit_code, ended
    lines = [json.loads(line) for line in ended.err.splitlines() if line.startswith("{")]
    (said,) = [line for line in lines if line["event"] == "daemon.load_failed"]
    assert words in said["error"]
    assert str(tmp_path) in said["error"]
    assert not path.exists()


@pytest.mark.anyio
async def test_a_file_that_shrinks_while_it_is_in_use_is_named_as_the_cause(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copyfile(MODEL or "", model)
    with pytest.raises(ChildDied, match=r"SIGBUS.*a file that it reads was cut short") as caught:
        async with launch(str(model), slots=1, ctx=256, options=["--threads=1"]) as runner:
            await runner.ready()
            os.truncate(model, 4096)
            await runner.client.complete("Once", max_tokens=4)
    assert caught.value.cause == "bus_error"
