"""Where all read the same cells: what is no number in one's cells is in everybody's rows."""

from collections.abc import Sequence

import anyio
import pytest

from runnerd.client import GenerationStream, RequestFailed, connect
from runnerd.core.batch import Batch, Edit, KVCopy, KVRemove, Sampled, SampleFault
from runnerd.engine.base import Decoded, EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from tests.daemon import running_daemon
from tests.e2e.asking import GREEDY, loosely

pytestmark = pytest.mark.anyio

MODEL = "layers=2,dim=16,heads=2"
POISON = ord("!")  # a token that is evaluated to what is no number
STEADY = {"max_tokens": 60, "ignore_end": True, "temperature": 0.0}


class Poisonable(ReferenceEngine):
    """Has no number for anybody while a slot holds the poison, as without flash attention."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self._poisoned: set[int] = set()
        self.n_spoiled = 0

    def apply(self, edits: Sequence[Edit]) -> None:
        super().apply(edits)
        for edit in edits:
            match edit:
                case KVRemove(slot_id, 0, None):
                    self._poisoned.discard(slot_id)
                case KVCopy(from_slot_id, slot_id, _) if from_slot_id in self._poisoned:
                    self._poisoned.add(slot_id)

    def decode(self, batch: Batch) -> Decoded:
        decoded = super().decode(batch)
        self._poisoned |= {span.slot_id for span in batch.spans if POISON in span.inputs}
        if not self._poisoned:
            return decoded
        self.n_spoiled += len(decoded.sampled)
        spoiled: list[Sampled] = [SampleFault("nan", spoils_slot=True) for _ in decoded.sampled]
        return Decoded(tuple(spoiled), decoded.sampling_s)


@pytest.mark.parametrize("n_poison", [1, 40])
async def test_whoever_shares_cells_with_a_sequence_without_numbers_is_told_what_it_would_be_alone(
    n_poison: int,
) -> None:
    """Also while that one is amid its prompt, when only its neighbours have rows with logits."""
    async with (
        running_daemon(MODEL, load=Poisonable, kv="unified", n_slots=4, n_batch=8) as daemon,
        connect(daemon.path) as client,
    ):
        prompts = ("one", "two", "three " * 5)
        wanted = [(await client.complete(each, **loosely(STEADY))).text for each in prompts]
        said: dict[int, str] = {}

        async def listen(number: int, stream: GenerationStream) -> None:
            said[number] = "".join([delta.text async for delta in stream])

        async with (
            client.generate(prompts[0], **loosely(STEADY)) as first,
            client.generate(prompts[1], **loosely(STEADY)) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listen, 0, first)
            tasks.start_soon(listen, 1, second)
            with pytest.raises(RequestFailed, match="engine_failed: nan"):
                await client.complete("!" * n_poison, max_tokens=5)
            third = await client.complete(prompts[2], **loosely(STEADY))
        assert [said[0], said[1], third.text] == wanted
        assert daemon.engine_as(Poisonable).n_spoiled > 1
        assert daemon.runner.figures.n_failed == 1
        await daemon.has_all_slots()


async def test_what_nobody_has_looked_at_costs_who_comes_next_nothing() -> None:
    async with (
        running_daemon(MODEL, load=Poisonable, kv="unified", n_slots=2) as daemon,
        connect(daemon.path) as client,
    ):
        wanted = (await client.complete("x", max_tokens=9, **GREEDY)).text
        for scope in "abc":
            await client.complete("!", max_tokens=0)
            answer = await client.complete("x", max_tokens=9, cache_scope=scope, **GREEDY)
            assert answer.text == wanted
        assert daemon.runner.figures.n_failed == 0
        await daemon.has_all_slots()
