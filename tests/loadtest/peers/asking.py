"""Requests for peers that answer as recorded."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

from loadtest.comparison.exchange import Ask, Exchange, Peer, Sampling, Setup


def setup_of(model: Path, *, n_batch: int = 2048, kv_unified: bool = False) -> Setup:
    return Setup(
        model=model, n_slots=3, n_ctx=1024, n_batch=n_batch, n_threads=1, kv_unified=kv_unified
    )


async def exchange_with(
    peer: Peer,
    *prompt: int,
    max_tokens: int = 8,
    cancel_after: int = 0,
    ignore_eos: bool = True,
    json_schema: Mapping[str, object] | None = None,
    sampling: Sampling | None = None,
    image: Path | None = None,
) -> Exchange:
    ask = Ask(
        role="test",
        prompt=prompt,
        max_tokens=max_tokens,
        cancel_after=cancel_after,
        ignore_eos=ignore_eos,
        json_schema=json_schema,
        sampling=sampling or Sampling(),
        image=image,
    )
    exchange = Exchange(role=ask.role, n_prompt=len(prompt), asked_at=perf_counter())
    await peer.ask(ask, exchange)
    return exchange
