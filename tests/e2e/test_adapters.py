"""LoRA adapters, chosen by each request, side by side with others and with none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import anyio
import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Adapter
from tests.daemon import PATIENCE_S, running_daemon
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, ask, ask_all, cold, refusal

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2,end_bias=-100"
NAMES = ("verse", "prose")
FEW: Mapping[str, object] = {"max_tokens": 12, **GREEDY}


def using(scale: float, name: str = "verse") -> dict[str, object]:
    return {"adapters": [Adapter(name, scale)], **FEW}


async def test_an_adapter_changes_the_text_and_a_scale_of_0_does_not() -> None:
    async with running_daemon(MODEL, adapters=NAMES) as daemon, connect(daemon.path) as client:
        assert (await client.model()).adapters == list(NAMES)
        plain = await ask(client, "Once", **FEW)
        assert (await ask(client, "Once", **using(0.0))).tokens == plain.tokens
        verse = await ask(client, "Once", **using(1.0))
        assert verse.tokens != plain.tokens
        assert (await ask(client, "Once", **using(1.0, "prose"))).tokens != verse.tokens
        assert (await ask(client, "Once", **FEW)).tokens == plain.tokens


@pytest.mark.parametrize("kv", ["split", "unified"])
async def test_six_scales_side_by_side_each_say_their_own(kv: Literal["split", "unified"]) -> None:
    scales = (0.0, 0.0, 0.3, 0.7, 1.0, 1.0)
    async with (
        running_daemon(MODEL, adapters=NAMES, n_slots=4, kv=kv) as daemon,
        connect(daemon.path) as client,
    ):
        wanted = [await cold(daemon.path, "Look in thy glass", **using(s)) for s in scales]
        assert len({tuple(answer.tokens) for answer in wanted}) == 4
        for _ in range(5):
            asks = [("Look in thy glass", using(scale)) for scale in scales]
            answers = await ask_all(client, asks)
            assert [a.tokens for a in answers] == [a.tokens for a in wanted]
        await daemon.has_all_slots()


async def test_a_prefix_is_not_shared_between_adapters() -> None:
    text = "The same text for everybody, whatever it is read with. " * 2
    async with running_daemon(MODEL, adapters=NAMES) as daemon, connect(daemon.path) as client:
        await ask(client, text, **FEW)
        assert (await ask(client, text, **using(1.0))).finished.n_cached == 0
        assert (await ask(client, text, **using(0.5))).finished.n_cached == 0
        assert (await ask(client, text, **using(1.0, "prose"))).finished.n_cached == 0
        assert (await ask(client, text, **using(1.0))).finished.n_cached == len(text)
        assert (await ask(client, text, **using(0.0))).finished.n_cached == len(text)


async def test_the_order_in_which_adapters_are_named_is_no_difference() -> None:
    both = [Adapter("verse", 0.5), Adapter("prose", 1.0)]
    text = "Once upon a time there was a king who had two daughters"
    async with running_daemon(MODEL, adapters=NAMES) as daemon, connect(daemon.path) as client:
        one = await ask(client, text, adapters=both, **FEW)
        other = await ask(client, text, adapters=both[::-1], **FEW)
        assert one.tokens == other.tokens
        assert other.finished.n_cached == len(text)


async def test_the_few_are_not_starved_by_the_many() -> None:
    async with (
        running_daemon(MODEL, adapters=NAMES, n_slots=4) as daemon,
        connect(daemon.path) as client,
    ):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(_run_until_cancelled, daemon.path, f"many {number}")
            await daemon.until(lambda: daemon.runner.figures.n_generated_tokens > 30)
            with anyio.fail_after(PATIENCE_S):
                n_before = daemon.runner.figures.n_generated_tokens
                few = await ask(client, "few", adapters=[Adapter("prose")], max_tokens=20)
                n_others = daemon.runner.figures.n_generated_tokens - n_before - 20
            tasks.cancel_scope.cancel()
        assert few.finished.n_generated == 20
        assert n_others < 20 * 4 * 3 + 200


async def _run_until_cancelled(path: Path, prompt: str) -> None:
    async with connect(path) as client:
        await client.complete(prompt, shift=True)


@pytest.mark.parametrize(
    ("adapters", "told"),
    [
        ([Adapter("nobody")], "verse"),
        ([Adapter("verse"), Adapter("verse", 0.5)], "verse"),
        ([Adapter("VERSE")], "verse"),
    ],
)
async def test_an_adapter_that_is_not_there_or_named_twice_is_refused(
    adapters: list[Adapter], told: str
) -> None:
    async with running_daemon(MODEL, adapters=NAMES) as daemon, connect(daemon.path) as client:
        failed = await refusal(client, "x", adapters=adapters)
        assert failed.code == "invalid_request"
        assert told in failed.message
        await daemon.has_all_slots()


@pytest.mark.llama
async def test_six_scales_of_a_real_model_each_say_their_own(
    smollm2_with_adapters: DaemonProcess,
) -> None:
    path, prompt = smollm2_with_adapters.path, "Look in thy glass, and tell the face"
    scales = (0.0, 0.0, 0.3, 0.7, 1.0, 1.0)
    async with connect(path) as client:
        assert (await client.model()).adapters == list(NAMES)
        wanted = [await cold(path, prompt, **using(scale)) for scale in scales]
        assert wanted[0].tokens == (await cold(path, prompt, **FEW)).tokens
        assert len({tuple(answer.tokens) for answer in wanted}) >= 3
        answers = await ask_all(client, [(prompt, using(scale)) for scale in scales])
        assert [a.tokens for a in answers] == [a.tokens for a in wanted]
        failed = await refusal(client, "x", adapters=[Adapter("nobody")])
        assert failed.code == "invalid_request"
