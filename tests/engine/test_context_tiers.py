"""The context where none was asked for follows the memory of the devices."""

import pytest
from structlog.testing import capture_logs

from runnerd.engine.base import EngineConfig
from runnerd.engine.context_tiers import GIB, tier_of, with_default_n_ctx
from runnerd.engine.device import Device, DeviceKind


def device(total: float, kind: DeviceKind = "gpu") -> Device:
    return Device("a", "A", kind, round(total * GIB), 0)


def chosen(
    config: EngineConfig, *devices: Device, trained: int = 2**20, n_fits: int = 2**30
) -> int:
    """Return the context chosen, where one of `n_fits` would fit."""
    return with_default_n_ctx(config, trained, devices, lambda config: config.n_ctx <= n_fits).n_ctx


@pytest.mark.parametrize(
    ("devices", "n_ctx"),
    [
        ([], 4096),
        ([device(8)], 4096),
        ([device(22.5)], 4096),
        ([device(23.5)], 32768),  # is sold as 24 GB
        ([device(12), device(12)], 32768),
        ([device(46)], 32768),
        ([device(47.5)], 262144),
        ([device(80)], 262144),
        ([device(999, "cpu")], 4096),
        ([device(999, "integrated")], 4096),
        ([device(8), device(999, "cpu")], 4096),
    ],
)
def test_the_more_memory_devices_have_the_longer_a_context_is(
    devices: list[Device], n_ctx: int
) -> None:
    assert tier_of(devices) == n_ctx


def test_a_context_is_of_the_tier_where_that_fits() -> None:
    with capture_logs() as lines:
        assert chosen(EngineConfig(""), device(80)) == 262144
    assert lines == []


def test_a_context_is_at_most_what_the_model_was_trained_for() -> None:
    assert chosen(EngineConfig(""), device(80), trained=8192) == 8192
    assert chosen(EngineConfig(""), trained=2048) == 2048


def test_a_context_is_at_most_all_cells() -> None:
    assert chosen(EngineConfig("", n_cells=10000), device(80)) == 10000


def test_a_context_that_was_asked_for_is_kept_whatever_fits() -> None:
    with capture_logs() as lines:
        assert chosen(EngineConfig("", n_ctx=100_000), device(1), n_fits=0) == 100_000
    assert lines == []


def test_a_context_that_does_not_fit_is_halved_and_that_is_logged() -> None:
    with capture_logs() as lines:
        assert chosen(EngineConfig(""), device(80), n_fits=70_000) == 65536
    (line,) = lines
    assert (line["event"], line["n_ctx"]) == ("context.default_lowered", 65536)
    assert (line["n_ctx_tier"], line["n_ctx_train"]) == (262144, 2**20)


def test_a_context_is_not_lowered_below_the_least() -> None:
    assert chosen(EngineConfig(""), device(80), n_fits=0) == 4096
    assert chosen(EngineConfig(""), device(80), n_fits=0, trained=3000) == 3000
