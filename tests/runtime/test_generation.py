"""What a generation lives through beside its text: several completions, grammars, adapters."""

import threading
from typing import Any

import anyio
import pytest
from anyio import to_thread

from runnerd.client import RequestFailed, connect
from runnerd.core.batch import Batch, SampleFault
from runnerd.engine.base import ConstraintKind, Decoded, EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine, parse_options
from runnerd_protocol.messages import (
    Accepted,
    Adapter,
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
)
from tests.daemon import PATIENCE_S, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio


class SlowGrammars(ReferenceEngine):
    """Takes its time over a grammar: `started` is set, and `constrain` waits for `may_end`."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self.started = threading.Event()
        self.may_end = threading.Event()

    def constrain(self, kind: ConstraintKind, text: str) -> object:
        self.started.set()
        self.may_end.wait()
        return super().constrain(kind, text)

    def close(self) -> None:
        self.may_end.set()
        super().close()


class FaultySampling(ReferenceEngine):
    """Finds no token for the third row that is sampled."""

    def __init__(self, config: EngineConfig, progress: LoadProgress) -> None:
        super().__init__(config, parse_options(config.model), progress)
        self._n_sampled = 0

    def decode(self, batch: Batch) -> Decoded:
        decoded = super().decode(batch)
        sampled = list(decoded.sampled)
        for at in range(len(sampled)):
            self._n_sampled += 1
            if self._n_sampled == 3:
                sampled[at] = SampleFault("nothing left to choose from")
        return Decoded(tuple(sampled), decoded.sampling_s)


# --- several completions ------------------------------------------------------------------------


async def test_completions_of_one_prompt_have_seeds_texts_and_endings_of_their_own() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", n=3, seed=7, max_tokens=12, temperature=1.5)
        alone = [
            await client.complete("Once", seed=seed, max_tokens=12, temperature=1.5)
            for seed in (7, 8, 9)
        ]
        await daemon.has_all_slots()
    assert [choice.text for choice in done.choices] == [each.text for each in alone]
    assert [choice.summary.seed for choice in done.choices] == [7, 8, 9]
    assert done.text == alone[0].text
    assert len({choice.text for choice in done.choices}) == 3
    finished = done.finished
    assert (finished.n_prompt, finished.n_generated, finished.seed) == (5, 36, 7)
    assert finished.n_text_bytes == sum(len(each.text.encode()) for each in alone)
    assert finished.n_cached == sum(choice.summary.n_cached for choice in done.choices)


async def test_a_drawn_seed_is_reported_for_each_completion() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", n=2, max_tokens=1)
    first, second = (choice.summary.seed for choice in done.choices)
    assert second == (first + 1) % (2**32 - 1)
    assert done.finished.seed == first


async def test_a_single_completion_has_no_line_of_its_own() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "Once", max_tokens=2))
        assert (await client.receive_a(Finished)).choices == []


async def test_deltas_say_which_completion_they_belong_to() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(Generate(1, "Once", n=3, max_tokens=8, temperature=1.5))
        assert await client.receive() == Accepted(1)
        n_tokens = [0, 0, 0]
        while isinstance(message := await client.receive(), Delta):
            n_tokens[message.index] += message.n_tokens
        assert isinstance(message, Finished)
        assert n_tokens == [8, 8, 8]


async def test_more_completions_than_slots_wait_their_turn() -> None:
    async with running_daemon(n_slots=2) as daemon, connect(daemon.path) as client:
        with anyio.fail_after(PATIENCE_S):
            done = await client.complete("Once", n=7, max_tokens=5)
        assert [choice.summary.n_generated for choice in done.choices] == [5] * 7
        await daemon.has_all_slots()


async def test_each_completion_takes_a_place_in_the_queue() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1, max_queue=4) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x", shift=True, n=3))
        await daemon.engine_as(SteppedEngine).at_step()
        await client.send(Generate(2, "x", n=3))
        failed = await client.receive_a(Failed)
        assert (failed.request_id, failed.code, failed.retryable) == (2, "overloaded", True)
        assert failed.details == {"n_waiting": 2, "max_queue": 4}
        await client.send(Generate(3, "x", n=6))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.details["field"]) == ("invalid_request", "n")
        await client.send(Generate(4, "x", n=2), GetStatus(5))
        assert (await client.receive_a(Status)).n_waiting == 4


async def test_a_cancel_ends_all_completions_running_and_waiting() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=2) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", shift=True, n=4))
        await engine.at_step()
        await engine.step(3)
        await client.send(Cancel(1), GetStatus(9))
        await client.receive_a(Status)
        engine.let_all_go()
        finished = await client.receive_a(Finished)
        assert [choice.reason for choice in finished.choices] == ["cancelled"] * 4
        await daemon.has_all_slots()


async def test_one_completion_that_fails_ends_the_others_and_fails_the_request_once() -> None:
    async with (
        running_daemon(load=FaultySampling) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "Once", n=2, shift=True))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.message) == ("engine_failed", "nothing left to choose from")
        await daemon.until(lambda: not daemon.runner.batcher or not daemon.runner.batcher.seq_ids)
        await client.send(GetStatus(2))
        status = await client.receive_a(Status)
        assert (status.n_requests, status.n_failed, status.n_slots_free) == (1, 1, 4)


async def test_a_client_that_goes_takes_all_completions_with_it() -> None:
    async with running_daemon(n_slots=2) as daemon:
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x", shift=True, n=4))
            await client.receive_a(Delta)
        await daemon.has_all_slots()
        assert daemon.runner.n_waiting == 0


# --- log-probabilities --------------------------------------------------------------------------


async def test_logprobs_list_each_token_with_its_bytes_and_the_likeliest() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", max_tokens=30, logprobs=3, seed=1)
        plain = await client.complete("Once", max_tokens=30, seed=1)
    assert done.text == plain.text
    assert plain.logprobs == ()
    assert len(done.logprobs) == done.finished.n_generated
    data = b"".join(picked.data for picked in done.logprobs)
    assert data.decode(errors="replace") == done.text
    for picked in done.logprobs:
        logprobs = [top.logprob for top in picked.top]
        assert len(logprobs) == 3
        assert logprobs == sorted(logprobs, reverse=True)
        assert picked.logprob <= logprobs[0] <= 0.0


async def test_logprobs_belong_to_their_completion() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("Once", n=2, max_tokens=9, logprobs=0, temperature=1.5)
    for choice in done.choices:
        data = b"".join(picked.data for picked in choice.logprobs)
        assert data.decode(errors="replace") == choice.text


# --- grammars and adapters ----------------------------------------------------------------------


async def test_a_grammar_forces_the_text() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        done = await client.complete("x", grammar='root ::= "yes" | "no"', n=3)
    assert {choice.text for choice in done.choices} <= {"yes", "no"}
    assert done.finished.reason == "stop"


async def test_a_bad_grammar_says_where_and_leaves_no_trace() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        for options in ({"grammar": "root ::= ["}, {"json_schema": {"type": "object"}}):
            with pytest.raises(RequestFailed, match="bad_grammar") as caught:
                await client.complete("x", **options)
            assert not caught.value.failed.retryable
        await daemon.has_all_slots()


async def test_while_a_grammar_compiles_other_clients_are_served_and_the_order_is_kept() -> None:
    async with (
        running_daemon(load=SlowGrammars) as daemon,
        raw_client(daemon) as client,
        raw_client(daemon) as other,
    ):
        engine = daemon.engine_as(SlowGrammars)
        await client.send(Generate(1, "x", grammar='root ::= "a"'), Generate(2, "x", max_tokens=1))
        await to_thread.run_sync(engine.started.wait)
        await other.send(Generate(1, "x", max_tokens=1))
        await other.receive_a(Finished)
        engine.may_end.set()
        accepted = [(await client.receive_a(Accepted)).request_id for _ in range(2)]
        assert accepted == [1, 2]


async def test_a_cancel_while_a_grammar_compiles_is_not_forgotten() -> None:
    async with running_daemon(load=SlowGrammars) as daemon, raw_client(daemon) as client:
        engine = daemon.engine_as(SlowGrammars)
        await client.send(Generate(1, "x", grammar='root ::= "a"'))
        await to_thread.run_sync(engine.started.wait)
        await client.send(Cancel(1), GetStatus(2))
        await client.receive_a(Status)
        engine.may_end.set()
        assert (await client.receive_a(Finished)).reason == "cancelled"
        assert daemon.runner.figures.n_steps == 0
        await daemon.has_all_slots()


async def test_a_client_that_goes_while_its_grammar_compiles_leaves_nothing_behind() -> None:
    async with running_daemon(load=SlowGrammars) as daemon:
        engine = daemon.engine_as(SlowGrammars)
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x", shift=True, grammar='root ::= "a"'))
            await to_thread.run_sync(engine.started.wait)
        engine.may_end.set()
        await daemon.until(lambda: daemon.runner.n_waiting == 0)
        assert daemon.runner.figures.n_steps == 0
        await daemon.has_all_slots()


async def test_adapters_change_the_text_and_the_model_names_them() -> None:
    async with (
        running_daemon("layers=1,dim=16", adapters=("style", "tone")) as daemon,
        connect(daemon.path) as client,
    ):
        assert (await client.model()).adapters == ["style", "tone"]
        greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
        plain = await client.complete("Once", **greedy)
        off = await client.complete("Once", adapters={"tone": 0.0}, **greedy)
        on = await client.complete("Once", adapters={"tone": 4.0}, **greedy)
        listed = [Adapter("tone", 4.0)]
        again = await client.complete("Once", adapters=listed, **greedy)
    assert off.text == plain.text
    assert on.text != plain.text
    assert again.text == on.text


# --- ends before the beginning ------------------------------------------------------------------


async def test_a_cancel_in_preparation_answers_for_every_completion_and_counts_each() -> None:
    async with running_daemon(load=SlowGrammars) as daemon, raw_client(daemon) as client:
        engine = daemon.engine
        assert isinstance(engine, SlowGrammars)
        await client.send(Generate(1, "x", n=3, seed=2**32 - 3, grammar='root ::= "a"'))
        await to_thread.run_sync(engine.started.wait)
        await client.send(Cancel(1))
        engine.may_end.set()
        done = await client.receive_a(Finished)
        assert [choice.reason for choice in done.choices] == ["cancelled"] * 3
        assert [choice.seed for choice in done.choices] == [2**32 - 3, 2**32 - 2, 0]
        assert all(choice.timings.total_ms > 0.0 for choice in done.choices)
        assert done.timings == done.choices[0].timings
        await client.send(GetStatus(2))
        status = await client.receive_a(Status)
        assert (status.n_requests, status.n_cancelled, status.n_timed_out) == (1, 3, 0)


async def test_a_queue_timeout_counts_each_completion_as_out_of_time_and_none_as_cancelled() -> (
    None
):
    async with (
        running_daemon(load=SteppedEngine, n_slots=1) as daemon,
        raw_client(daemon) as client,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await client.send(Generate(1, "x", max_tokens=1))
        await engine.at_step()
        await client.send(Generate(2, "y", n=3, queue_timeout_s=0.05))
        assert (await client.receive_a(Failed)).code == "queue_timeout"
        await client.send(GetStatus(3))
        status = await client.receive_a(Status)
        assert (status.n_failed, status.n_cancelled, status.n_timed_out) == (1, 0, 3)
        engine.let_all_go()


async def test_nothing_watches_the_queue_for_a_generation_that_has_ended() -> None:
    async with running_daemon(load=SteppedEngine, n_slots=1) as daemon:
        engine = daemon.engine_as(SteppedEngine)
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x", max_tokens=1))
            await engine.at_step()
            await client.send(Generate(2, "y", return_progress=True))
            await client.receive_a(Accepted, 2)
            daemon.runner.give_up("no reason")
            await client.receive_a(Failed, 2)
            client.shut_down_sending()
            after = await client.rest()
        assert [each for each in after if getattr(each, "request_id", None) == 2] == []
        await daemon.until(lambda: daemon.server.n_connections == 0)
