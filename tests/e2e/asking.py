"""Ask a daemon, and keep all that it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from msgspec.msgpack import encode

from runnerd.client import Client, GenerateOptions, GenerationStream, RequestFailed, connect
from runnerd_protocol.messages import Delta, Failed, Finished, Prompt, TokenLogprobs
from tests.daemon import PATIENCE_S

GREEDY: Mapping[str, Any] = {"temperature": 0.0}
IMPATIENCE_S = 2.0  # for what is refused, on a machine that has other things to do


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, delta by delta."""

    deltas: tuple[Delta, ...]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [entry for delta in self.deltas for entry in delta.logprobs]

    def of(self, index: int) -> str:
        """Return the text of one of several completions."""
        return "".join(delta.text for delta in self.deltas if delta.index == index)


def loosely(options: Mapping[str, object]) -> GenerateOptions:
    """Return options that the type checker does not see: they may be wrong on purpose."""
    return cast("GenerateOptions", options)


async def ask(client: Client, prompt: Prompt, **options: object) -> Answer:
    """Generate, and return everything that came."""
    async with client.generate(prompt, **loosely({"return_tokens": True, **options})) as stream:
        deltas = tuple([delta async for delta in stream])
    assert stream.finished is not None
    answer = Answer(deltas, stream.finished)
    assert answer.finished.n_text_bytes == len(answer.text.encode())
    return answer


async def ask_all(
    client: Client, asks: Sequence[tuple[Prompt, Mapping[str, object]]]
) -> list[Answer]:
    """Ask for all at once; return the answers in the order of the questions."""
    answers: dict[int, Answer] = {}

    async def note(index: int) -> None:
        prompt, options = asks[index]
        answers[index] = await ask(client, prompt, **options)

    with anyio.fail_after(4 * PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for index in range(len(asks)):
                tasks.start_soon(note, index)
    return [answers[index] for index in range(len(asks))]


async def refusal(client: Client, prompt: Prompt, **options: object) -> Failed:
    """Ask for what cannot be had; return why."""
    with anyio.fail_after(PATIENCE_S), pytest.raises(RequestFailed) as caught:
        await client.complete(prompt, **loosely(options))
    return caught.value.failed


async def longest_gap_s(stream: GenerationStream) -> float:
    """Read a stream to the end that it was asked for; return the longest wait for a text."""
    longest_s, told_at = 0.0, anyio.current_time()
    async for _ in stream:
        longest_s = max(longest_s, anyio.current_time() - told_at)
        told_at = anyio.current_time()
    assert stream.finished is not None
    assert stream.finished.reason == "length"
    return longest_s


async def cold(daemon: Path, prompt: Prompt, **options: object) -> Answer:
    """Ask where nothing that is cached can be used: in a scope of its own."""
    async with connect(daemon) as client:
        scope = f"cold {anyio.current_time()}"
        return await ask(client, prompt, cache_scope=scope, **options)


def literal(text: str) -> str:
    """Return the grammar of one text only."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'root ::= "{escaped}"'


def frame(**fields: object) -> bytes:
    """Return a request to generate whose fields may be anything."""
    payload = encode({"type": "generate", "request_id": 7, "prompt": "x", **fields})
    return len(payload).to_bytes(4, "big") + payload
