"""Equal streams side by side: all at once, more than there are slots, with a core taken away."""

from msgspec.structs import replace

from loadtest.comparison.busy import busy_core
from loadtest.comparison.exchange import Ask, Exchange, Peer, Sampling
from loadtest.comparison.workloads.asking import Prompts, ask_together

N_PROMPT = 128
N_BURST_PROMPT = 32  # so short that what is seen is waiting, not evaluation
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95)


async def steady(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """Equal streams that all begin at once: what a system makes of the machine when it is easy."""
    return await ask_together(peer, await _asks(peer, seed, n_streams, n_generated))


async def sampled(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """As steady, but tokens are drawn (top-k, top-p): what picking them costs.

    The limit it is held against picks greedily.
    """
    asks = await _asks(peer, seed, n_streams, n_generated)
    return await ask_together(
        peer,
        [replace(ask, sampling=replace(SAMPLED, seed=seed + n)) for n, ask in enumerate(asks)],
    )


async def burst(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """More requests at once than there are slots: who waits, and whether all are served alike."""
    prompts = await Prompts(peer, seed).several(n_streams, N_BURST_PROMPT)
    return await ask_together(
        peer, [Ask(role="stream", prompt=each, max_tokens=n_generated) for each in prompts]
    )


async def contended(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Exchange]:
    """As steady, while another process keeps a core busy: what is left of the pace."""
    asks = await _asks(peer, seed, n_streams, n_generated)
    async with busy_core():
        return await ask_together(peer, asks)


async def _asks(peer: Peer, seed: int, n_streams: int, n_generated: int) -> list[Ask]:
    prompts = await Prompts(peer, seed).several(n_streams, N_PROMPT)
    return [Ask(role="stream", prompt=prompt, max_tokens=n_generated) for prompt in prompts]
