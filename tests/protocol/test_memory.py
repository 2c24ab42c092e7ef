"""What a plan may ask for, and what a report must hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import DaemonMessage, MemoryReport, Plan
from tests.protocol.builders import SMALL_MEMORY, answer_to, message_in, open_server, raw_frame

PLAN = {"type": "plan", "request_id": 1}

sizes = st.fixed_dictionaries(
    {},
    optional={
        "n_ctx": st.none() | st.integers(2, 2**31 - 1),
        "n_slots": st.none() | st.integers(1, 256),
        "kv_type": st.none() | st.sampled_from(["f16", "q8_0", "q4_0"]),
        "n_gpu_layers": st.none() | st.integers(0, 2**16),
    },
)


@settings(deadline=None)
@given(sizes=sizes)
def test_a_plan_asks_for_any_of_its_sizes(sizes: dict[str, object]) -> None:
    message = message_in(open_server(), raw_frame({**PLAN, **sizes}))
    assert isinstance(message, Plan)
    for name in ("n_ctx", "n_slots", "kv_type", "n_gpu_layers"):
        assert getattr(message, name) == sizes.get(name)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_ctx": 1}, "n_ctx"),
        ({"n_ctx": 2**31}, "n_ctx"),
        ({"n_ctx": 64.0}, "n_ctx"),
        ({"n_ctx": True}, "n_ctx"),
        ({"n_slots": 0}, "n_slots"),
        ({"n_slots": 257}, "n_slots"),
        ({"n_slots": "4"}, "n_slots"),
        ({"kv_type": "q2_k"}, "kv_type"),
        ({"kv_type": 16}, "kv_type"),
        ({"n_gpu_layers": -1}, "n_gpu_layers"),
        ({"n_gpu_layers": 2**16 + 1}, "n_gpu_layers"),
    ],
)
def test_a_bad_size_is_refused_by_its_name(fields: dict[str, object], field: str) -> None:
    reply = answer_to(open_server(), raw_frame({**PLAN, **fields}))
    assert (reply.code, reply.details["field"]) == ("invalid_request", field)


def test_what_a_newer_daemon_tells_of_memory_is_ignored() -> None:
    payload = encode_frame(MemoryReport(1, SMALL_MEMORY))[4:]
    fields = msgpack.decode(payload)
    fields["memory"]["later"] = 1
    fields["memory"]["layers"][0]["later"] = [1]
    fields["memory"]["devices"][0]["later"] = {}
    assert msgpack.decode(msgpack.encode(fields), type=DaemonMessage) == MemoryReport(
        1, SMALL_MEMORY
    )
