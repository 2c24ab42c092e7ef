"""A plan as a message: every number of it, and what the daemon takes on top."""

from dataclasses import asdict, fields

from hypothesis import given, settings
from msgspec import json, msgpack
from msgspec.structs import asdict as as_dict

from runnerd.config import Config, ImageLimits
from runnerd.engine.base import EngineConfig
from runnerd.engine.device import Device
from runnerd.engine.memory_plan import DeviceMemory, MemoryPlan
from runnerd.memory_report import memory_of
from runnerd_protocol.messages import Memory
from tests.memory_plans import plans, small_plan

IMAGES = ImageLimits(store_bytes=100, pixel_bytes=20, cache_bytes=3)
MIB = 2**20


def config(*, mmproj: str = "", checkpoint_mib: int = 0) -> Config:
    engine = EngineConfig("small.gguf", mmproj=mmproj)
    return Config(engine, checkpoint_mib=checkpoint_mib, images=IMAGES)


@settings(deadline=None)
@given(plan=plans)
def test_every_number_of_a_plan_is_told(plan: MemoryPlan) -> None:
    memory = memory_of(plan, config())
    for field in fields(MemoryPlan):
        if field.name not in ("layers", "devices", "failed", "has_checkpoints"):
            assert getattr(memory, field.name) == getattr(plan, field.name)
    assert [as_dict(each) for each in memory.layers] == [asdict(each) for each in plan.layers]
    told = None if memory.failed is None else as_dict(memory.failed)
    assert told == (None if plan.failed is None else asdict(plan.failed))
    assert memory.fits == plan.fits
    for ours, theirs in zip(plan.devices, memory.devices, strict=True):
        for field in (*fields(Device), *fields(DeviceMemory)):
            if field.name != "device":
                source = ours.device if field in fields(Device) else ours
                assert getattr(theirs, field.name) == getattr(source, field.name)


@settings(deadline=None)
@given(plan=plans)
def test_a_plan_survives_the_wire_and_json(plan: MemoryPlan) -> None:
    memory = memory_of(plan, config())
    assert msgpack.decode(msgpack.encode(memory), type=Memory) == memory
    assert json.decode(json.encode(memory), type=Memory) == memory


def test_checkpoints_come_on_top_of_the_plan_of_a_model_that_has_any() -> None:
    plan = small_plan(has_checkpoints=True)
    assert memory_of(plan, config(checkpoint_mib=3)).cache_bytes == 3 * MIB
    assert memory_of(small_plan(), config(checkpoint_mib=3)).cache_bytes == 0


def test_images_come_on_top_of_a_plan_where_there_is_a_projector() -> None:
    assert memory_of(small_plan(), config()).cache_bytes == 0
    assert memory_of(small_plan(projector_bytes=1), config()).cache_bytes == 123
    both = config(mmproj="eyes.gguf", checkpoint_mib=1)
    assert memory_of(small_plan(has_checkpoints=True), both).cache_bytes == MIB + 123
