"""Settings that change while clients are served."""

from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import anyio
import pytest

from runnerd.client import connect
from runnerd.commands.serve_settings import kinds
from runnerd.config import Config, SessionLimits
from runnerd.engine.base import EngineConfig
from runnerd.errors import ConfigError
from runnerd.peers import Access
from runnerd.reloading import Changes, _options, apply
from runnerd_protocol.messages import (
    Accepted,
    Failed,
    Finished,
    Generate,
    GetStatus,
    ProtocolError,
    Status,
)
from tests.daemon import PATIENCE_S, Daemon, RawClient, raw_client, running_daemon
from tests.engines import SteppedEngine

pytestmark = pytest.mark.anyio

# Fields that no option sets; a reload cannot change them.
WITHOUT_OPTION = {
    *("max-frame-bytes", "max-subscriptions", "max-plans", "intake-bytes", "media-timeout"),
    *("pixel-bytes", "inherited-fd", "parent-fd", "has-passed-sockets"),
}
# Options of the process, and not of what it serves.
OF_THE_PROCESS = {"log-level", "log-format", "async-backend"}


def change(daemon: Daemon, **changes: object) -> Changes:
    return apply(replace(daemon.runner.config, **changes), daemon.runner)  # type: ignore[arg-type]


async def status_of(client: RawClient) -> Status:
    await client.send(GetStatus(99))
    return await client.receive_a(Status)


def test_every_setting_has_the_name_of_its_option() -> None:
    named = [name for name, _ in _options(Config(EngineConfig("")))]
    assert len(named) == len(set(named))
    assert (
        set(named) - WITHOUT_OPTION == {name.replace("_", "-") for name in kinds()} - OF_THE_PROCESS
    )


async def test_the_same_settings_change_nothing() -> None:
    async with running_daemon() as daemon:
        assert change(daemon) == Changes((), ())


async def test_a_smaller_queue_refuses_new_requests_and_fails_nobody() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1, max_queue=3) as daemon,
        raw_client(daemon) as client,
    ):
        for request_id in (1, 2, 3, 4):
            await client.send(Generate(request_id, "x", max_tokens=1))
            await client.receive_a(Accepted, request_id)
        assert change(daemon, max_queue=1) == Changes(("max-queue",), ())
        await client.send(Generate(5, "x", max_tokens=1))
        failed = await client.receive_a(Failed, 5)
        assert (failed.code, failed.details) == ("overloaded", {"n_waiting": 3, "max_queue": 1})
        status = await status_of(client)
        assert (status.max_queue, status.n_waiting) == (1, 3)
        daemon.engine_as(SteppedEngine).let_all_go()
        for request_id in (1, 2, 3, 4):
            await client.receive_a(Finished, request_id)
        await client.send(Generate(6, "x", max_tokens=1), Generate(7, "x", max_tokens=1))
        await client.receive_a(Finished, 6)
        await client.receive_a(Finished, 7)


async def test_a_larger_queue_holds_at_once() -> None:
    async with (
        running_daemon(load=SteppedEngine, n_slots=1, max_queue=0) as daemon,
        raw_client(daemon) as client,
    ):
        await client.send(Generate(1, "x", max_tokens=1))
        await client.receive_a(Accepted, 1)
        await client.send(Generate(2, "x"))
        await client.receive_a(Failed, 2)
        change(daemon, max_queue=1)
        await client.send(Generate(3, "x", max_tokens=1))
        await client.receive_a(Accepted, 3)
        daemon.engine_as(SteppedEngine).let_all_go()
        await client.receive_a(Finished, 3)


async def test_fewer_connections_close_none_that_is_open() -> None:
    async with (
        running_daemon() as daemon,
        raw_client(daemon) as first,
        raw_client(daemon) as second,
    ):
        change(daemon, max_connections=1)
        async with raw_client(daemon, greets=False) as third:
            (error,) = await third.rest()
            assert isinstance(error, ProtocolError)
            assert (error.code, error.details) == ("too_many_connections", {"max_connections": 1})
        for client in (first, second):
            await client.send(Generate(1, "x", max_tokens=1))
            await client.receive_a(Finished)
        change(daemon, max_connections=3)
        async with raw_client(daemon):
            pass


async def test_a_shorter_step_timeout_holds_for_the_step_in_progress_and_a_longer_one_too() -> None:
    async with (
        running_daemon(load=SteppedEngine) as daemon,
        connect(daemon.path) as client,
        AsyncExitStack() as stack,
    ):
        engine = daemon.engine_as(SteppedEngine)
        await stack.enter_async_context(client.generate("x", max_tokens=1))
        await engine.at_step()
        with anyio.fail_after(PATIENCE_S):
            async with client.subscribe(3600.0) as statuses:
                assert (await anext(statuses)).state == "ready"
                assert change(daemon, step_timeout_s=0.1).applied == ("step-timeout",)
                while (await anext(statuses)).state != "stalled":
                    pass
                change(daemon, step_timeout_s=60.0)
                while (await anext(statuses)).state != "ready":
                    pass
                change(daemon, step_timeout_s=0.1)
                while (await anext(statuses)).state != "stalled":
                    pass
                engine.let_all_go()
                while (await anext(statuses)).state != "ready":
                    pass


async def test_limits_of_a_connection_are_those_of_its_beginning() -> None:
    async with (
        running_daemon(load=SteppedEngine, limits=SessionLimits(max_requests=2)) as daemon,
        raw_client(daemon) as old,
    ):
        changes = change(daemon, session=SessionLimits(max_requests=1, outbox_bytes=2**12))
        assert changes == Changes(("max-requests", "outbox-kib"), ())
        async with raw_client(daemon) as new:
            for client, n_most in ((old, 2), (new, 1)):
                for request_id in range(1, n_most + 1):
                    await client.send(Generate(request_id, "x"))
                    await client.receive_a(Accepted)
                await client.send(Generate(9, "x"))
                assert (await client.receive_a(Failed)).request_id == 9


async def test_what_the_model_was_loaded_with_waits_for_a_restart() -> None:
    async with running_daemon(n_slots=2) as daemon, raw_client(daemon) as client:
        old = daemon.runner.config
        engine = replace(old.engine, n_slots=3, model="layers=1")
        changes = change(
            daemon, engine=engine, drain_s=1.0, checkpoint_mib=1, socket_path=Path("other")
        )
        assert changes.applied == ("drain",)
        assert set(changes.waiting) == {"slots", "model", "checkpoint-mib", "socket"}
        assert daemon.runner.config == replace(old, drain_s=1.0)
        assert (await status_of(client)).n_slots == 2
        again = change(daemon, engine=engine)
        assert (again.applied, set(again.waiting)) == ((), {"slots", "model"})
        await daemon.has_all_slots()


async def test_of_settings_that_are_refused_nothing_holds() -> None:
    async with running_daemon(max_queue=3) as daemon:
        old = daemon.runner.config
        with pytest.raises(ConfigError, match="drain -1"):
            change(daemon, max_queue=1, drain_s=-1.0, max_connections=1)
        assert daemon.runner.config is old
        assert daemon.runner.places.max_queue == 3


async def test_whom_to_let_in_and_the_gap_between_tokens_hold_at_once() -> None:
    async with running_daemon() as daemon:
        access = Access(frozenset({1234}), frozenset({5678}))
        changes = change(daemon, access=access, target_itl_ms=10.0)
        assert changes.applied == ("allow-users", "allow-groups", "target-itl-ms")
        assert daemon.runner.config.access == access


async def test_settings_that_change_before_the_model_is_there_hold_when_it_is() -> None:
    async with running_daemon("layers=0,load_ms=50", waits_for_load=False) as daemon:
        change(daemon, target_itl_ms=7.0, max_queue=5)
        async with raw_client(daemon) as client:
            await client.send(Generate(1, "x", max_tokens=1))
            await client.receive_a(Finished)
        assert daemon.runner.batcher is not None
        assert daemon.runner.batcher._fill._budget.target_itl_s == 0.007


def test_no_nested_setting_is_left_out() -> None:
    config = Config(EngineConfig(""))
    n_fields = sum(
        len(fields(value)) if is_dataclass(value := getattr(config, each.name)) else 1
        for each in fields(config)
    )
    assert len(list(_options(config))) == n_fields
