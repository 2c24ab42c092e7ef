"""Long prompts beside short ones, and a crowd beside one: everybody gets on."""

import anyio
import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Accepted, Delta, Finished, Generate, Priority
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio

N_SLOTS, N_BATCH = 4, 32


@pytest.mark.parametrize("n_long", [1, 2])
@pytest.mark.parametrize("place", range(N_SLOTS - 1))
async def test_a_long_prompt_in_any_slot_keeps_nobody_from_a_token_in_each_step(
    place: int, n_long: int
) -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=N_SLOTS, n_batch=N_BATCH, n_ctx=2048) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        order = [f"stream {i}" for i in range(N_SLOTS - n_long)]
        for _ in range(n_long):
            order.insert(place, "x" * (30 * N_BATCH))
        for request_id, prompt in enumerate(order):
            await client.send(Generate(request_id, prompt, max_tokens=200, temperature=0.0))
            await client.receive_a(Accepted, request_id)
        streams = {1 + n for n, prompt in enumerate(order) if len(prompt) < N_BATCH}
        await engine.at_step()
        await engine.step(3 * N_SLOTS)
        n_before = len(engine.batches)
        await engine.step(12)
        for batch in engine.batches[n_before:]:
            assert streams <= {span.seq_id for span in batch.spans}
            assert batch.n_rows <= N_BATCH
        engine.let_all_go()


async def test_a_short_prompt_is_answered_before_a_long_one_is_read() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=N_SLOTS, n_batch=N_BATCH, n_ctx=2048) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x" * (30 * N_BATCH), max_tokens=1))
        await client.receive_a(Accepted, 1)
        await engine.at_step()
        await engine.step()
        await client.send(Generate(2, "short", max_tokens=1))
        await client.receive_a(Accepted, 2)
        await engine.step(N_SLOTS)
        assert (await client.receive_a(Finished)).request_id == 2
        engine.let_all_go()
        assert (await client.receive_a(Finished)).request_id == 1


@pytest.mark.parametrize("priority", ["normal", "low"])
async def test_one_among_a_steady_crowd_is_served(priority: Priority) -> None:
    """The crowd shares a prefix that is cached, and is never less than the slots and the queue."""
    async with (
        running_daemon("layers=1,dim=16,end_bias=-100", n_slots=2) as daemon,
        connect(daemon.path) as client,
    ):
        crowd = "what everybody asks all day long, and what is cached therefore: "

        async def crowd_of_one(number: int) -> None:
            while True:
                await client.complete(f"{crowd}{number}", max_tokens=4)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(crowd_of_one, number)
            await daemon.until(lambda: daemon.runner.n_waiting >= 4)
            n_before = daemon.runner.figures.n_requests
            with anyio.fail_after(PATIENCE_S):
                done = await client.complete("unique", max_tokens=4, priority=priority)
            n_others = daemon.runner.figures.n_requests - n_before
            tasks.cancel_scope.cancel()
        assert done.finished.n_generated == 4
        assert n_others < (20 if priority == "normal" else 80)


async def test_urgent_requests_go_first_and_the_others_in_their_order() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(0, "hold", max_tokens=2))
        await engine.at_step()
        asked: list[Priority] = ["normal", "low", "normal", "high", "high"]
        await client.send(
            *(
                Generate(i, "a" * i, max_tokens=1, priority=priority)
                for i, priority in enumerate(asked, start=1)
            )
        )
        await client.receive_a(Accepted, len(asked))
        engine.let_all_go()
        ended = [(await client.receive_a(Finished)).request_id for _ in range(6)]
        assert ended == [0, 4, 5, 1, 3, 2]


async def test_text_comes_token_by_token_while_others_are_served() -> None:
    async with running_daemon(load=SteppedEngine, n_slots=2) as daemon, raw_client(daemon) as c:
        engine = daemon.engine_as(SteppedEngine)
        await c.send(Generate(1, "a", max_tokens=6), Generate(2, "b", max_tokens=6))
        await engine.at_step()
        for _ in range(3):
            await engine.step()
            deltas = [await c.receive_a(Delta) for _ in range(2)]
            assert {delta.request_id for delta in deltas} == {1, 2}
            assert [delta.n_tokens for delta in deltas] == [1, 1]
        engine.let_all_go()
