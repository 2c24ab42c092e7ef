"""A sequence of a real model whose numbers are none: it fails alone, and leaves nothing behind."""

from pathlib import Path

import pytest

from runnerd.client import RequestFailed, connect
from runnerd_protocol.messages import Adapter
from tests.daemon_process import start_daemon_process
from tests.e2e.asking import GREEDY
from tests.engine.adapter_files import lora_of_nan
from tests.processes import needs_model

pytestmark = [pytest.mark.anyio, pytest.mark.llama, needs_model]

BAD = [Adapter("bad", 1.0)]
WORSE = "Any prompt, " * 3


# Without flash attention, which leaves out what is masked where it runs on the CPU.
@pytest.mark.parametrize(("kv", "n_slots"), [("split", 2), ("unified", 2)])
async def test_a_sequence_without_numbers_spoils_neither_its_neighbour_nor_its_slot(
    kv: str, n_slots: int, tmp_path: Path
) -> None:
    options = (f"--kv={kv}", f"--slots={n_slots}", "--flash-attn=off", "--threads=1")
    adapter = f"--lora=bad={lora_of_nan(tmp_path)}"
    async with (
        start_daemon_process("smollm2", *options, "--ctx=64", adapter, engine="llama") as daemon,
        connect(daemon.path) as client,
    ):
        prompt = "The capital of France is"
        wanted = (await client.complete(prompt, max_tokens=6, **GREEDY)).text
        async with client.generate(prompt, max_tokens=6, **GREEDY) as stream:
            said = (await anext(stream)).text
            with pytest.raises(RequestFailed, match="the largest logit is nan"):
                await client.complete(WORSE, max_tokens=9, adapters=BAD)
            assert said + "".join([delta.text async for delta in stream]) == wanted
        for scope in map(str, range(n_slots)):  # in each slot, and from nothing that is cached
            # Nobody looks at what this one's numbers are, so they are still there.
            await client.complete(WORSE, max_tokens=0, adapters=BAD)
            got = await client.complete(prompt, max_tokens=6, cache_scope=scope, **GREEDY)
            assert got.text == wanted
        await daemon.has_all_slots()
