"""Under random load, what slots tell agrees with what the clients see of their requests."""

from random import Random

import anyio
import pytest

from runnerd.client import Client, connect
from runnerd_protocol.messages import Finished, SlotStatus, Status
from tests.daemon import PATIENCE_S, running_daemon

pytestmark = pytest.mark.anyio

N_ASKING, N_ASKS, N_SLOTS = 9, 12, 4


class Seen:
    """What the client knows of its requests, and what it was told of slots meanwhile."""

    def __init__(self) -> None:
        self.n_tokens: dict[int, int] = {}  # of requests in progress, as far as they came
        self.ended: dict[int, Finished | None] = {}
        self.slots: dict[int, list[SlotStatus]] = {}
        self.states: set[str] = set()

    def note(self, status: Status, told: dict[int, int], ended: set[int]) -> None:
        """Compare a status with what was known when it was asked for."""
        busy = [slot for slot in status.slots if slot.state != "idle"]
        assert [slot.slot_id for slot in status.slots] == list(range(N_SLOTS))
        assert len(busy) == N_SLOTS - status.n_slots_free
        ids = [slot.client_request_id for slot in busy]
        assert len(set(ids)) == len(ids)
        assert not ended.intersection(ids)
        for slot in busy:
            assert slot.n_generated >= told.get(slot.client_request_id, 0)
            assert slot.n_cached + slot.n_evaluated <= slot.n_prompt
            if slot.state == "generating":
                assert slot.n_cached + slot.n_evaluated == slot.n_prompt
            assert (slot.n_generated > 0) >= (slot.state == "generating")
            self.slots.setdefault(slot.client_request_id, []).append(slot)
        self.states.update(slot.state for slot in status.slots)


async def ask_on(client: Client, seen: Seen, dice: Random) -> None:
    for _ in range(N_ASKS):
        prompt = "".join(dice.choices("ab ", k=dice.randint(1, 120)))
        n_wanted = dice.choice([1, 5, 40])
        n_read = dice.choice([0, 3, 1000, 1000])
        async with client.generate(prompt, max_tokens=n_wanted, return_tokens=True) as stream:
            seen.n_tokens[stream.request_id] = 0
            async for delta in stream:
                seen.n_tokens[stream.request_id] += delta.n_tokens
                n_read -= 1
                if n_read < 0:
                    break
        seen.ended[stream.request_id] = stream.finished


@pytest.mark.parametrize("seed", range(3))
async def test_slots_agree_with_what_clients_see(seed: int) -> None:
    seen = Seen()
    async with (
        running_daemon("layers=1", n_slots=N_SLOTS, n_ctx=200, n_batch=24, n_cells=500) as daemon,
        connect(daemon.path) as client,
        connect(daemon.path) as watcher,
    ):

        async def watch() -> None:
            while True:
                # Whom a client has cancelled may have its slot until the step has ended.
                ended = {number for number, last in seen.ended.items() if last is not None}
                told = dict(seen.n_tokens)
                seen.note(await watcher.status(), told, ended)

        with anyio.fail_after(3 * PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                async with anyio.create_task_group() as asking:
                    for number in range(N_ASKING):
                        asking.start_soon(ask_on, client, seen, Random(f"{seed} {number}"))
                tasks.cancel_scope.cancel()
        await daemon.until(lambda: not daemon.runner.batcher or not daemon.runner.batcher.seq_ids)
        assert {slot.state for slot in (await watcher.status()).slots} == {"idle"}
    assert seen.states >= {"prompt", "generating"}
    assert seen.slots.keys() <= seen.ended.keys()
    for request_id, slots in seen.slots.items():
        finished = seen.ended[request_id]
        counts = [slot.n_generated for slot in slots]
        assert counts == sorted(counts)
        assert len({slot.n_prompt for slot in slots}) == 1
        assert len({slot.waiting_s for slot in slots}) == 1
        if finished is not None:
            assert counts[-1] <= finished.n_generated
            assert slots[0].n_prompt == finished.n_prompt
