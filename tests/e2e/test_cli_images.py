"""`runnerd generate --image`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd.blocking import BlockingClient
from runnerd.client import ChatMessage
from runnerd_protocol.messages import Prompt
from tests.media.drawn import drawn
from tests.processes import Ended, run, serving

MODEL = "layers=2,dim=16,heads=2"
OPTIONS = ("--max-tokens=9", "--temperature=0", "--json")


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli") / "socket"
    with serving(path, MODEL):
        yield path


@pytest.fixture
def red(tmp_path: Path) -> Path:
    path = tmp_path / "red.png"
    path.write_bytes(drawn(1))
    return path


@pytest.fixture
def blue(tmp_path: Path) -> Path:
    path = tmp_path / "blue.png"
    path.write_bytes(drawn(2))
    return path


def answer(ended: Ended) -> tuple[str, int]:
    assert ended.code == 0, ended
    said = json.loads(ended.out)
    return said["text"], said["n_prompt"]


def told(path: Path, prompt: Prompt) -> tuple[str, int]:
    with BlockingClient(path) as client:
        done = client.complete(prompt, max_tokens=9, temperature=0.0)
    return done.text, done.finished.n_prompt


def test_images_come_before_the_text_in_their_order(
    socket_path: Path, red: Path, blue: Path
) -> None:
    arguments = ("generate", "What?", f"--socket={socket_path}", *OPTIONS)
    ended = run(*arguments, f"--image={red}", f"--image={blue}")
    with BlockingClient(socket_path) as client:
        done = client.complete(parts=[red, blue, "What?"], max_tokens=9, temperature=0.0)
    assert answer(ended) == (done.text, done.finished.n_prompt)


def test_in_a_chat_images_are_of_the_users_message(socket_path: Path, red: Path) -> None:
    arguments = ("generate", "What?", f"--socket={socket_path}", *OPTIONS)
    ended = run(*arguments, f"--image={red}", "--chat", "--system=Be brief.")
    turns = [ChatMessage("system", "Be brief."), ChatMessage("user", [red, "What?"])]
    with BlockingClient(socket_path) as client:
        prompt = client.chat_prompt(turns)
    assert answer(ended) == told(socket_path, prompt)


def test_a_private_daemon_is_shown_images(red: Path) -> None:
    model = (f"--model={MODEL}", "--engine=reference", f"--image={red}", *OPTIONS)
    assert answer(run("generate", "What?", *model))[1] > len("What?")


def test_a_file_that_is_no_image_is_told_by_the_daemon(socket_path: Path) -> None:
    ended = run("generate", "What?", f"--socket={socket_path}", f"--image={__file__}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("runnerd: invalid_media: image 0: ")
    assert len(ended.err.splitlines()) == 1
