"""Requests with images: pictures that no one has seen, and what is seen of an answer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import BytesIO
from time import perf_counter
from typing import Literal

import anyio
from msgspec import Struct
from PIL import Image

from runnerd.client import Client, PromptPart

Kind = Literal["PNG", "BMP"]

QUESTION = " What is it?"


class Answer(Struct, frozen=True):
    """The first token of a request, and how much of its prompt was evaluated for it.

    `prefill_ms` is the daemon's own figure: from the slot to the first token.
    """

    ttft_s: float
    n_prompt: int
    n_cached: int
    prefill_ms: float

    @property
    def n_evaluated(self) -> int:
        """Inputs of the prompt that were not cached."""
        return self.n_prompt - self.n_cached


def pictures(side: int, kind: Kind = "PNG") -> Iterator[bytes]:
    """Yield the files of pictures, each of a colour of its own; there are 2^24."""
    for number in range(2**24):
        # Far apart, so that no two that follow each other look alike.
        colour = number * 0x9E3779 % 2**24
        image = Image.new("RGB", (side, side), (colour >> 16, colour >> 8 & 255, colour & 255))
        file = BytesIO()
        image.save(file, kind)
        yield file.getvalue()


async def ask(client: Client, picture: bytes, question: str, cache_scope: str = "") -> Answer:
    """Ask something about a picture, for a single token."""
    asked_at = perf_counter()
    first_at = 0.0
    parts: list[PromptPart] = [picture, question]
    async with client.generate(
        parts=parts, max_tokens=1, temperature=0.0, cache_scope=cache_scope
    ) as stream:
        async for _ in stream:
            first_at = first_at or perf_counter()
    ended_at = perf_counter()
    finished = stream.finished
    assert finished is not None, "a stream that ends has a last message"
    # A token that never became text is only in the count of the last message.
    ttft_s = (first_at or ended_at) - asked_at
    return Answer(ttft_s, finished.n_prompt, finished.n_cached, finished.timings.prefill_ms)


async def measure_media_step(client: Client, picture: bytes) -> float:
    """Return the milliseconds of the step that evaluates a picture, by the daemon's own figures.

    The daemon has nothing else to do. It is asked once before, and then in a scope of its own:
    nothing is encoded any more, but all is evaluated. All other steps are of a little text, and
    the last of them stands for them. A mark before the picture, if there is one, shares its step.
    """
    await ask(client, picture, QUESTION)
    n_before = (await client.status()).n_steps
    answer = await ask(client, picture, QUESTION, cache_scope="once more")
    status = await client.status()
    n_text_steps = status.n_steps - n_before - 1
    return max(0.0, answer.prefill_ms - n_text_steps * status.step_ms)


async def ask_together(client: Client, picture: bytes, n_requests: int) -> float:
    """Ask different things about one picture at once; return the seconds to all first tokens."""
    answers: list[Answer] = []

    async def ask_one(number: int) -> None:
        answers.append(await ask(client, picture, f" Question {number}:"))

    async with anyio.create_task_group() as tasks:
        for number in range(n_requests):
            tasks.start_soon(ask_one, number)
    return max(answer.ttft_s for answer in answers)


@asynccontextmanager
async def asking_on(client: Client, new: Iterator[bytes]) -> AsyncIterator[None]:
    """Ask about new pictures, one after the other, as long as the block lasts."""

    async def ask_all() -> None:
        for picture in new:
            await ask(client, picture, QUESTION)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_all)
        yield
        tasks.cancel_scope.cancel()
