"""Settings that cannot work are refused, each by its name."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from runnerd.config import Config, ImageLimits, SessionLimits, check_config
from runnerd.engine.base import MAX_SLOTS, EngineConfig
from runnerd.errors import ConfigError

GOOD = Config(EngineConfig("layers=0", "reference"), Path("socket"))
NAN = float("nan")


def test_the_defaults_are_good() -> None:
    check_config(GOOD)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("slots", {"n_slots": 0}),
        ("slots", {"n_slots": MAX_SLOTS + 1}),
        ("ctx", {"n_ctx": -1}),
        ("batch", {"n_batch": 0}),
        ("ubatch", {"n_ubatch": 0}),
        ("ubatch", {"n_batch": 8, "n_ubatch": 9}),
        ("threads", {"n_threads": -1}),
        ("threads", {"n_threads": 10**6}),
        ("batch", {"n_slots": 9, "n_batch": 8, "n_ubatch": 8}),
        ("ctx", {"n_ctx": 1}),
        ("ctx-total", {"n_ctx": 100, "n_cells": 99}),
        ("ctx-total 401", {"n_ctx": 100, "n_slots": 4, "n_cells": 401}),
        ("ctx-total", {"n_cells": 1}),
        ("ctx-total", {"n_cells": -1}),
        ("embed-max", {"n_embed": -1}),
        ("embed-max", {"n_embed": 2**20 + 1}),
        ("image-rows", {"n_image_rows": -1}),
        ("image-rows", {"n_image_rows": 2**16 + 1}),
    ],
)
def test_an_engine_setting_out_of_range_is_named(name: str, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        check_config(replace(GOOD, engine=replace(GOOD.engine, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("max-queue", {"max_queue": -1}),
        ("max-connections", {"max_connections": 0}),
        ("target-itl-ms", {"target_itl_ms": NAN}),
        ("target-itl-ms", {"target_itl_ms": -1}),
        ("checkpoint-mib", {"checkpoint_mib": -1}),
        ("drain", {"drain_s": -1}),
        ("drain", {"drain_s": NAN}),
        ("step-timeout", {"step_timeout_s": 0}),
        ("load-timeout", {"load_timeout_s": 0}),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        check_config(replace(GOOD, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("max-requests", SessionLimits(max_requests=0)),
        ("outbox-kib", SessionLimits(outbox_bytes=0)),
        ("max-frame", SessionLimits(max_frame_bytes=2**16)),
        ("outbox-kib", SessionLimits(outbox_bytes=16 * 2**20)),
        ("handshake-timeout", SessionLimits(handshake_timeout_s=0)),
        ("frame-timeout", SessionLimits(frame_timeout_s=NAN)),
        ("write-timeout", SessionLimits(write_timeout_s=-1)),
    ],
)
def test_a_session_limit_out_of_range_is_named(name: str, limits: SessionLimits) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        check_config(replace(GOOD, session=limits))


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("image-max-mpx", ImageLimits(n_pixels=0)),
        ("image-max-mpx", ImageLimits(n_pixels=1_001_000_000)),
        ("image-store-mib", ImageLimits(store_bytes=0)),
        ("image-store-mib", ImageLimits(store_bytes=2**41)),
        ("pixel_bytes", ImageLimits(pixel_bytes=-1)),
        ("image-cache-mib", ImageLimits(cache_bytes=-1)),
    ],
)
def test_a_limit_of_images_out_of_range_is_named(name: str, limits: ImageLimits) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        check_config(replace(GOOD, images=limits))


def test_rows_of_images_are_for_a_model_that_reads_some() -> None:
    llama = replace(GOOD.engine, engine="llama", n_image_rows=64)
    with pytest.raises(ConfigError, match="image-rows 64 needs mmproj"):
        check_config(replace(GOOD, engine=llama))
    check_config(replace(GOOD, engine=replace(llama, mmproj="projector.gguf")))
    check_config(replace(GOOD, engine=replace(GOOD.engine, n_image_rows=64)))


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ([("", "a.gguf")], "lora name ''"),
        ([("x" * 257, "a.gguf")], "1 to 256 printable"),
        ([("a\0b", "a.gguf")], "lora name"),
        ([("tone", "")], "lora tone has no path"),
        ([("tone", "a\0b")], "lora tone has no path"),
        ([("tone", "a"), ("style", "b"), ("tone", "c")], "'tone' is given more than once"),
        ([(str(i), "a") for i in range(65)], "number of lora adapters 65"),
    ],
)
def test_an_adapter_that_cannot_be_named_is_refused(
    adapters: list[tuple[str, str]], words: str
) -> None:
    engine = replace(GOOD.engine, adapters=tuple(adapters))
    with pytest.raises(ConfigError, match=words):
        check_config(replace(GOOD, engine=engine))


def test_adapters_with_names_of_their_own_are_good() -> None:
    engine = replace(GOOD.engine, adapters=(("tone", "a.gguf"), ("style", "a.gguf")))
    check_config(replace(GOOD, engine=engine))


def test_a_kv_type_that_needs_flash_attention_is_refused_without_it() -> None:
    engine = replace(GOOD.engine, kv_type="q8_0", flash_attn="off")
    with pytest.raises(ConfigError, match=r"kv-type q8_0.*flash-attn is off"):
        check_config(replace(GOOD, engine=engine))


def test_there_must_be_something_to_serve_on() -> None:
    with pytest.raises(ConfigError, match="socket"):
        check_config(replace(GOOD, socket_path=None))


def test_an_inherited_descriptor_must_be_an_open_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        check_config(replace(GOOD, inherited_fd=ours.fileno()))
        closed = os.dup(ours.fileno())
    os.close(closed)
    with pytest.raises(ConfigError, match=f"fd {closed}: "):
        check_config(replace(GOOD, inherited_fd=closed))
    with Path(os.devnull).open() as file, pytest.raises(ConfigError, match="is not a socket"):
        check_config(replace(GOOD, inherited_fd=file.fileno()))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpu-layers -1", EngineConfig("", n_gpu_layers=-1)),
        ("gpu-layers 65537", EngineConfig("", n_gpu_layers=2**16 + 1)),
        ("gpu-layers 3 with no devices", EngineConfig("", n_gpu_layers=3, devices=())),
        ("gpu-layers 3 with no devices", EngineConfig("", n_gpu_layers=3, devices=("cpu",))),
        ("reserve-mib -1", EngineConfig("", reserve_bytes=-(2**20))),
        ("tensor-split -1", EngineConfig("", tensor_split=(2.0, -1.0))),
        ("tensor-split nan", EngineConfig("", tensor_split=(NAN,))),
        ("tensor-split gives no device", EngineConfig("", tensor_split=(0.0, 0.0))),
        ("2 shares for 1 devices", EngineConfig("", tensor_split=(1.0, 1.0), devices=("a",))),
        ("device id ''", EngineConfig("", devices=("a", ""))),
        ("device id ' '", EngineConfig("", devices=(" ",))),
        ("device id 'a\\\\n'", EngineConfig("", devices=("a\n",))),
        ("device id 'a' is given more", EngineConfig("", devices=("a", "b", "a"))),
    ],
)
def test_what_no_device_could_satisfy_is_named(name: str, changes: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=name):
        check_config(replace(GOOD, engine=changes))


@pytest.mark.parametrize(
    "engine",
    [
        EngineConfig("", n_gpu_layers=0, devices=()),
        EngineConfig("", n_gpu_layers=999),
        EngineConfig("", devices=("0000:01:00.0", "CUDA1"), tensor_split=(3.0, 0.0)),
        EngineConfig("", reserve_bytes=0),
    ],
)
def test_what_some_device_could_satisfy_is_good(engine: EngineConfig) -> None:
    check_config(replace(GOOD, engine=engine))
