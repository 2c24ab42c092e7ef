"""Errors of our own, each where a client's request meets it: what it costs, and whom."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import anyio
import pytest
from structlog.testing import capture_logs

from runnerd.client import connect
from runnerd.core.batch import Batch, Logprobs, Sampled
from runnerd.core.prompt import Part, Prompt, TextPart
from runnerd.engine.base import Decoded, EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd.engine.reference.tokenizer import BOS
from runnerd_protocol.messages import (
    Accepted,
    Delta,
    Detokenize,
    Embed,
    Failed,
    Finished,
    Generate,
    ProtocolError,
    Tokenize,
    Tokens,
)
from tests.daemon import raw_client, running_daemon
from tests.e2e.asking import GREEDY
from tests.faulty import FaultyEngine

pytestmark = pytest.mark.anyio

LONG = "x" * 10_000  # tokenized in a thread


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keep tracebacks from being printed with all that they hold, which takes seconds."""
    with capture_logs():
        yield


@pytest.mark.parametrize(
    ("call", "request_", "error"),
    [
        ("expand", Generate(2, "x"), RuntimeError),
        ("expand", Generate(2, LONG), MemoryError),
        ("expand", Tokenize(2, "x"), MemoryError),
        ("expand", Tokenize(2, LONG), RuntimeError),
        ("expand", Embed(2, ["x"]), MemoryError),
        ("token_bytes", Detokenize(2, [7]), RuntimeError),
        ("constrain", Generate(2, "x", grammar='root ::= "a"'), MemoryError),
    ],
)
async def test_an_error_of_ours_fails_the_request_that_meets_it_and_no_other(
    call: str,
    request_: Generate | Tokenize | Embed | Detokenize,
    error: type[Exception],
    quiet: None,
) -> None:
    async with running_daemon(load=FaultyEngine) as daemon, raw_client(daemon) as client:
        await client.send(Tokenize(1, "before"))
        wanted = (await client.receive_a(Tokens)).tokens
        daemon.engine_as(FaultyEngine).fail(call, error())
        await client.send(request_)
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "internal", False)
        assert failed.message == "an internal error"
        await client.send(Tokenize(2, "before"))  # the same connection, and the same number
        assert (await client.receive_a(Tokens)).tokens == wanted
        await daemon.has_all_slots()


class Untellable(ReferenceEngine):
    """Samples with log-probabilities, after a few, what nobody can be told the bytes of."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.n_good = 0

    def decode(self, batch: Batch) -> Decoded:
        decoded = super().decode(batch)
        return Decoded(tuple(map(self._spoiled, decoded.sampled)), decoded.sampling_s)

    def _spoiled(self, sampled: Sampled) -> Sampled:
        if not isinstance(sampled, Logprobs):
            return sampled
        self.n_good -= 1
        return sampled if self.n_good >= 0 else replace(sampled, top=((BOS, -1.0),))

    def token_bytes(self, token: int) -> bytes:
        if token == BOS:
            raise MemoryError
        return super().token_bytes(token)


@pytest.mark.parametrize(("n", "n_good"), [(1, 0), (3, 5)])
async def test_what_cannot_be_told_fails_its_request_once_and_its_neighbours_go_on(
    n: int, n_good: int, quiet: None
) -> None:
    async with (
        running_daemon(load=Untellable, n_slots=5) as daemon,
        connect(daemon.path) as neighbour,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(Untellable)
        engine.n_good = n_good
        text = (await neighbour.complete("by", max_tokens=200, **GREEDY)).text
        async with neighbour.generate("by", max_tokens=200, **GREEDY) as stream:
            said = (await anext(stream)).text
            await client.send(Generate(1, "x", max_tokens=50, n=n, logprobs=1))
            assert (await client.receive_a(Failed)).code == "internal"
            said += "".join([delta.text async for delta in stream])
        assert said == text
        await client.send(Generate(1, "x", max_tokens=2))
        while not isinstance(message := await client.receive(), Finished):
            assert isinstance(message, Accepted | Delta)  # nothing more of the first
        assert message.n_generated == 2
        assert daemon.runner.figures.n_failed == 1
        await daemon.has_all_slots()


class Unsayable(ReferenceEngine):
    """Finds tokens in a text that no message can hold."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        if TextPart("odd") in parts:
            return Prompt((2**70,))
        return super().expand(parts, add_bos=add_bos)


async def test_an_answer_that_cannot_be_encoded_ends_its_connection_with_a_word_and_no_other(
    quiet: None,
) -> None:
    async with (
        running_daemon(load=Unsayable, n_slots=2) as daemon,
        connect(daemon.path) as neighbour,
        raw_client(daemon) as client,
        neighbour.generate("by", max_tokens=50, shift=True, ignore_end=True) as stream,
    ):
        await client.send(Generate(1, "x", shift=True), Tokenize(2, "odd"))
        told = await client.receive_a(ProtocolError)
        assert (told.code, told.message, told.fatal) == ("internal", "an internal error", True)
        with pytest.raises(anyio.EndOfStream):
            await client.receive()
        assert sum([delta.n_tokens async for delta in stream]) == 50
        await daemon.has_all_slots()
