"""Requests about files, and what they are answered."""

from hashlib import sha256

from runnerd_protocol.messages import Failed, Generate, MediaPart, Part, TextPart
from tests.daemon import RawClient
from tests.media.drawn import drawn

RED, BLUE = drawn(1), drawn(2)


def hash_of(data: bytes) -> bytes:
    return sha256(data).digest()


def about(request_id: int, *parts: bytes | str | Part, n: int = 1) -> Generate:
    """Ask for three tokens about files, texts and whatever else."""
    prompt: list[Part] = [
        MediaPart(part)
        if isinstance(part, bytes)
        else (TextPart(part) if isinstance(part, str) else part)
        for part in parts
    ]
    return Generate(request_id, prompt, max_tokens=3, temperature=0.0, n=n)


async def failures(client: RawClient, n: int) -> dict[int, Failed]:
    """Return how so many requests have failed, by their ids: which is first is chance."""
    return {
        failed.request_id: failed for failed in [await client.receive_a(Failed) for _ in range(n)]
    }
