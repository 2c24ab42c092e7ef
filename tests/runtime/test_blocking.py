import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runnerd.blocking import BlockingClient
from runnerd.client import (
    CannotConnect,
    CannotRead,
    ChatMessage,
    ClientError,
    ConnectionLost,
    RequestFailed,
)
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import MediaPart, PromptProgress, Welcome
from tests.media.drawn import drawn
from tests.processes import PATIENCE_S, serving


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("blocking") / "socket"
    with serving(path, "layers=0,step_ms=2"):
        yield path


@pytest.fixture
def client(socket_path: Path) -> Iterator[BlockingClient]:
    with BlockingClient(socket_path) as client:
        yield client


def test_a_stream_gives_deltas_and_then_how_it_went(client: BlockingClient) -> None:
    with client.generate("hello", max_tokens=6, temperature=0.0) as stream:
        assert stream.finished is None
        text = "".join(delta.text for delta in stream)
    assert stream.finished is not None
    assert stream.finished.n_generated == 6
    assert text == client.complete("hello", max_tokens=6, temperature=0.0).text


def test_tokens_become_text_again(client: BlockingClient) -> None:
    tokens = client.tokenize("hello", add_bos=False)
    assert client.detokenize(tokens) == "hello"


def test_the_model_and_the_status_are_told(client: BlockingClient) -> None:
    assert client.model().name == "reference"
    assert client.status().state == "ready"


def test_memory_is_told_as_loaded_and_planned_with_other_sizes(client: BlockingClient) -> None:
    loaded = client.plan()
    assert loaded.model == "reference"
    planned = client.plan(n_ctx=64, n_slots=loaded.n_slots + 1, kv_type="f16", n_gpu_layers=0)
    assert (planned.n_ctx, planned.n_slots) == (64, loaded.n_slots + 1)


def test_progress_is_told_in_the_thread_that_reads(client: BlockingClient) -> None:
    told: list[tuple[int, str]] = []

    def tell(progress: PromptProgress) -> None:
        told.append((progress.n_processed, threading.current_thread().name))

    client.complete("x" * 50, max_tokens=1, on_progress=tell)
    assert told[-1] == (51, threading.current_thread().name)


def test_a_chat_is_rendered_and_answered(client: BlockingClient) -> None:
    turns = [ChatMessage("user", "hello")]
    done = client.complete_chat(turns, max_tokens=3, n=2)
    assert [choice.summary.n_generated for choice in done.choices] == [3, 3]
    with client.chat(turns, max_tokens=3) as stream:
        assert sum(delta.n_tokens for delta in stream) == 3
    assert done.finished.n_prompt == len(client.tokenize(client.chat_prompt(turns)))


def test_images_are_parts_of_prompts_and_of_messages(
    client: BlockingClient, tmp_path: Path
) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(drawn(1))
    done = client.complete(parts=["What?", path], max_tokens=3, temperature=0.0)
    with client.generate(parts=["What?", drawn(1)], max_tokens=3, temperature=0.0) as stream:
        assert stream.completion().text == done.text
    turns = [ChatMessage("user", ["What?", path])]
    assert client.complete_chat(turns, max_tokens=3).finished.n_generated == 3
    assert MediaPart(drawn(1)) in client.chat_prompt(turns)


def test_a_prompt_that_cannot_be_sent_leaves_the_client_usable(
    client: BlockingClient, tmp_path: Path
) -> None:
    with pytest.raises(CannotRead, match="No such file"):
        client.complete(parts=[tmp_path / "none.png"])
    with pytest.raises(TypeError, match="either a prompt or parts"):
        client.generate()
    assert client.complete("x", max_tokens=1).finished.n_generated == 1


def test_embeddings_come_as_arrays(client: BlockingClient) -> None:
    vectors = client.embed(["hello", "there"])
    assert len(vectors) == 2
    assert {len(vector) for vector in vectors} == {client.model().n_embd}


def test_statuses_are_told_until_the_block_is_left(client: BlockingClient) -> None:
    with client.subscribe(0.05) as statuses:
        assert [next(statuses).state for _ in range(3)] == ["ready"] * 3
    assert client.status().state == "ready"


def test_leaving_a_stream_early_frees_its_slot(client: BlockingClient) -> None:
    with client.generate("hello", shift=True) as stream:
        next(stream)
        assert client.status().n_slots_free == 3
    client.complete("another", max_tokens=1)  # the cancel is served before it
    assert client.status().n_slots_free == 4


def test_leaving_the_client_ends_streams_that_are_open(socket_path: Path) -> None:
    with BlockingClient(socket_path) as client:
        stream = client.generate("hello", shift=True)
        next(stream)
    with BlockingClient(socket_path) as client:
        client.complete("another", max_tokens=1)
        assert client.status().n_connections == 1


def test_streams_run_side_by_side_in_threads(client: BlockingClient) -> None:
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda i: client.complete(f"p{i}", max_tokens=9), range(3)))
    assert [result.finished.n_generated for result in results] == [9, 9, 9]


def test_a_refused_request_raises_what_the_daemon_said(client: BlockingClient) -> None:
    with pytest.raises(RequestFailed, match="prompt_too_long"):
        client.complete("x" * 2000)
    assert client.complete("x", max_tokens=1).finished.n_generated == 1


def test_where_nobody_listens_entering_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CannotConnect, match="runnerd serve"), BlockingClient(tmp_path / "nobody"):
        pytest.fail("there is nobody")


def test_leaving_the_client_ends_what_another_thread_waits_for(tmp_path: Path) -> None:
    is_asked = threading.Event()

    def be_silent(listener: socket.socket) -> None:
        stream, _ = listener.accept()
        with stream:
            stream.recv(2**16)
            stream.sendall(encode_frame(Welcome(1, 2**24)))
            stream.recv(2**16)
            is_asked.set()
            assert stream.recv(2**16) == b""

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(2) as threads:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        daemon = threads.submit(be_silent, listener)
        with BlockingClient(tmp_path / "socket") as client:
            status = threads.submit(client.status)
            assert is_asked.wait(PATIENCE_S)
        with pytest.raises(ConnectionLost, match="closed here"):
            status.result(PATIENCE_S)
        daemon.result(PATIENCE_S)


def test_calls_outside_of_the_block_say_so(socket_path: Path) -> None:
    client = BlockingClient(socket_path)
    with pytest.raises(ClientError, match="`with` block"):
        client.status()
    with client:
        stream = client.generate("hello", shift=True)
        next(stream)
        with pytest.raises(ClientError, match="entered already"):
            client.__enter__()
    for call in (client.status, client.model, lambda: client.generate("x"), client.subscribe):
        with pytest.raises(ClientError, match="`with` block"):
            call()
    with pytest.raises(ClientError, match="was left"):
        next(stream)
    stream.close()
    with client:
        assert client.status().state == "ready"


def test_a_client_is_left_though_other_threads_go_on_opening_streams(socket_path: Path) -> None:
    n_threads = 8
    for _ in range(3):
        are_running = threading.Barrier(n_threads + 1)

        def work(client: BlockingClient, running: threading.Barrier = are_running) -> None:
            client.complete("x", max_tokens=1)
            running.wait(PATIENCE_S)
            while True:
                client.generate("x", max_tokens=2).completion()

        with ThreadPoolExecutor(n_threads) as threads:
            with BlockingClient(socket_path) as client:
                ends = [threads.submit(work, client) for _ in range(n_threads)]
                are_running.wait(PATIENCE_S)
            for end in ends:
                assert isinstance(end.exception(PATIENCE_S), ClientError)


def test_no_inputs_have_no_embeddings(client: BlockingClient) -> None:
    assert client.embed([]) == []
