"""What has once been found by fuzzing stays survived; a short run looks for more."""

import tracemalloc
from random import Random
from typing import get_args

import pytest
from msgspec import DecodeError, msgpack

from runnerd_protocol.connection import ServerConnection
from runnerd_protocol.messages import ClientMessage, DaemonMessage
from tests.fuzz import live
from tests.fuzz.payloads import message
from tests.fuzz.script import parse
from tests.fuzz.targets import CORPUS, TARGETS, Run, Target

SEED = 20  # any will do; the same in each run, so that a failure can be seen again
N_RUNS = {"from_client": 60, "from_daemon": 120, "live": 8, "gguf": 800}
MAX_FILES = 64
MAX_CORPUS_BYTES = 200 * 2**10
EXPANSION = 80  # bytes of memory for each that came: a list of floats has 32 for 1


def run_or_show(run: Run, data: bytes) -> None:
    """Run an input; one that fails is shown, to be put into the corpus."""
    try:
        run(data)
    except BaseException as err:
        err.add_note(f"the input: {data!r}")
        raise


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_input_of_the_corpus_is_survived(target: Target) -> None:
    assert target.corpus
    with target.open() as run:
        for path in target.corpus:
            run_or_show(run, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_inputs_that_are_changed_at_random_are_survived(target: Target) -> None:
    draw = Random(SEED)
    inputs = [path.read_bytes() for path in target.corpus]
    with target.open() as run:
        for _ in range(N_RUNS[target.name]):
            changed = target.mutate(draw.choice(inputs), target.max_bytes, draw.randrange(2**32))
            run_or_show(run, changed)
            inputs.append(changed)
    assert len(inputs) == len(target.corpus) + N_RUNS[target.name]


def test_a_daemon_on_trio_survives_the_corpus() -> None:
    corpus = TARGETS["live"].corpus
    assert corpus
    with live.opened("trio") as run:
        for path in corpus:
            run_or_show(run, path.read_bytes())


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) <= MAX_FILES
    assert sum(path.stat().st_size for path in files) <= MAX_CORPUS_BYTES


@pytest.mark.parametrize("name", ["from_client", "live"])
def test_a_stream_takes_no_more_memory_than_so_many_times_its_length(name: str) -> None:
    for path in TARGETS[name].corpus:
        stream = b"".join(act.sent for act in parse(path.read_bytes()))
        server = ServerConnection()
        tracemalloc.start()
        server.receive(stream)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**16 + EXPANSION * len(stream), path


@pytest.mark.parametrize("union", [ClientMessage, DaemonMessage])
def test_every_message_of_the_wire_is_made_whole_and_broken(union: object) -> None:
    draw = Random(SEED)
    decoder = msgpack.Decoder(union)
    for kind in get_args(union):
        tag = kind.__struct_config__.tag
        whole = [_is_whole(message(draw, union, tag), decoder) for _ in range(200)]
        assert 20 < sum(whole) < 200, f"{sum(whole)} of 200 {tag}"


def _is_whole(payload: bytes, decoder: msgpack.Decoder[object]) -> bool:
    try:
        decoder.decode(payload)
    except (DecodeError, RecursionError):
        return False
    return True
