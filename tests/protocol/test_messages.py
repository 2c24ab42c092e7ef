"""What decodes, and what a daemon says about a field that does not."""

import math

import pytest
from msgspec import inspect

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Failed, Generate, GetStatus, ProtocolError
from tests.protocol.builders import GENERATE, answer_to, message_in, open_server, raw_frame

Bounded = inspect.IntType | inspect.FloatType


def numeric_fields() -> dict[str, tuple[Bounded, bool]]:
    """Return the numeric fields of `Generate`, and whether they may be null."""
    found: dict[str, tuple[Bounded, bool]] = {}
    info = inspect.type_info(Generate)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        for kind in kinds:
            if isinstance(kind, Bounded):
                found[field.name] = (kind, inspect.NoneType() in kinds)
    return found


def bad_values(kind: Bounded, is_nullable: bool) -> list[object]:
    """Return values that the field must refuse: wrong types, no numbers, just out of bounds."""
    values: list[object] = [math.nan, math.inf, -math.inf, 2**63, -(2**63), 2**64 - 1]
    values += [True, False, "1", b"1", [1], {"a": 1}]
    if not is_nullable:
        values.append(None)
    low = kind.ge if kind.ge is not None else kind.gt
    assert low is not None
    assert kind.le is not None
    if isinstance(kind, inspect.IntType):
        return [*values, 1.0, 0.5, int(low) - 1, int(kind.le) + 1]
    return [*values, math.nextafter(low, -math.inf), math.nextafter(kind.le, math.inf)]


NUMERIC = numeric_fields()
BAD = [(name, value) for name, spec in NUMERIC.items() for value in bad_values(*spec)]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_number_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    server = open_server()
    reply = answer_to(server, raw_frame({**GENERATE, name: value}))
    assert reply.code == "invalid_request"
    assert reply.details["field"] == name
    assert str(reply.details["value"])[:8] in repr(value)
    assert reply.message.startswith(f"{name} is {reply.details['value']}, expected ")
    assert reply.message.endswith(str(reply.details["limit"]))
    assert isinstance(reply, ProtocolError if name == "request_id" else Failed)
    assert server.receive(raw_frame({**GENERATE, "request_id": 2})) == [Generate(2, "hi")]


@pytest.mark.parametrize("name", NUMERIC)
def test_a_number_may_be_as_large_and_as_small_as_its_bounds(name: str) -> None:
    kind, _ = NUMERIC[name]
    for bound in filter(lambda bound: bound is not None, (kind.ge, kind.le)):
        message = message_in(open_server(), raw_frame({**GENERATE, name: bound}))
        assert getattr(message, name) == bound


@pytest.mark.parametrize(
    ("fields", "field", "value", "limit"),
    [
        ({"stop": ["a", ""]}, "stop[1]", "''", "str of length >= 1"),
        ({"stop": ["x" * 4097]}, "stop[0]", None, "str of length <= 4096"),
        ({"stop": ["x"] * 65}, "stop", None, "array of length <= 64"),
        ({"stop": "x"}, "stop", "'x'", "array, got str"),
        ({"prompt": 3}, "prompt", "3", "str | array, got int"),
        ({"prompt": None}, "prompt", "None", "str | array, got None"),
        ({"prompt": [{"type": "text", "text": 3}]}, "prompt[0].text", "3", "str, got int"),
        ({"prompt": [{"type": "image"}]}, "prompt[0].type", "'image'", "a known value"),
        ({"prompt": [{"type": "tokens", "tokens": [7, -1]}]}, "prompt[0].tokens[1]", "-1", None),
        ({"prompt": [{"type": "media", "data": "x"}]}, "prompt[0].data", "'x'", "bytes, got str"),
        (
            {"prompt": [{"type": "media"}, {"type": "media", "sha256": b"x" * 31}]},
            "prompt[1].sha256",
            f"b'{'x' * 31}'",
            "bytes of length >= 32",
        ),
        ({"truncate": 1}, "truncate", "1", "bool, got int"),
        ({"logit_bias": {7: 0, -1: 0}}, "logit_bias", "-1", "int >= 0"),
        ({"logit_bias": {7: 0, "x": 0}}, "logit_bias", "'x'", "int, got str"),
        ({"logit_bias": {True: 0}}, "logit_bias", "True", "int, got bool"),
        ({"logit_bias": {7: 0, 8: 1001}}, "logit_bias[8]", "1001", "float <= 1000.0"),
        ({"logit_bias": {7: math.nan}}, "logit_bias[7]", "nan", "float >= -1000.0"),
        ({"logit_bias": [7]}, "logit_bias", "[7]", "object, got array"),
        ({"logit_bias": dict.fromkeys(range(4097), 0)}, "logit_bias", None, None),
        ({"adapters": [{"name": ""}]}, "adapters[0].name", "''", "str of length >= 1"),
        ({"dry_breakers": ["\n", ""]}, "dry_breakers[1]", "''", "str of length >= 1"),
        ({"dry_breakers": ["x"] * 9}, "dry_breakers", None, None),
        ({"priority": "urgent"}, "priority", "'urgent'", "a known value"),
        ({"repeat_penalty": 5e-324}, "repeat_penalty", "5e-324", "float >= 0.01"),
    ],
)
def test_a_bad_field_is_told_by_its_path_value_and_limit(
    fields: dict[str, object], field: str, value: str | None, limit: str | None
) -> None:
    details = answer_to(open_server(), raw_frame({**GENERATE, **fields})).details
    assert details["field"] == field
    assert value is None or details["value"] == value
    assert limit is None or details["limit"] == limit


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": "generate", "request_id": 1}, "prompt"),
        ({**GENERATE, "prompt": [{"text": "x"}]}, "prompt[0].type"),
        ({**GENERATE, "prompt": ["x"]}, "prompt[0]"),
        ({**GENERATE, "adapters": [{"scale": 1}]}, "adapters[0].name"),
        ({"type": "embed", "request_id": 1}, "inputs"),
        ({"type": "detokenize", "request_id": 1}, "tokens"),
    ],
)
def test_what_is_missing_is_told_by_its_path(fields: dict[str, object], field: str) -> None:
    reply = answer_to(open_server(), raw_frame(fields))
    assert reply.code == "invalid_request"
    assert reply.details["field"] == field


def test_a_message_without_its_id_is_refused_on_the_connection() -> None:
    reply = answer_to(open_server(), raw_frame({"type": "get_status"}))
    assert reply == ProtocolError(
        "invalid_request",
        "request_id is missing",
        fatal=False,
        details={"field": "request_id", "limit": "required"},
    )


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, {"field": "data", "limit": "required"}),
        ({"data": "x"}, {"field": "data", "value": "'x'", "limit": "bytes, got str"}),
        ({"data": None}, {"field": "data", "value": "None", "limit": "bytes, got None"}),
    ],
)
def test_a_broken_file_names_its_field_and_request_and_fails_none(
    fields: dict[str, object], fault: dict[str, object], is_active: bool
) -> None:
    server = open_server()
    if is_active:
        server.receive(raw_frame(GENERATE))
    reply = answer_to(server, raw_frame({"type": "media_data", "request_id": 1, **fields}))
    assert isinstance(reply, ProtocolError)
    assert (reply.code, reply.fatal) == ("invalid_request", False)
    assert reply.details == {"request_id": 1, **fault}
    assert server.active == ((1,) if is_active else ())


def test_a_long_value_is_told_in_few_printable_characters() -> None:
    reply = answer_to(open_server(), raw_frame({**GENERATE, "top_k": "\x1b[31m\n" * 1000}))
    value = str(reply.details["value"])
    assert len(value) <= 64
    assert value.isprintable()


def test_a_huge_value_is_told_by_its_size() -> None:
    reply = answer_to(open_server(), raw_frame({**GENERATE, "top_k": "x" * 70_000}))
    assert reply.details["value"] == "(70005 bytes)"


def test_a_huge_map_with_a_bad_key_is_told_by_its_size() -> None:
    biases: dict[object, float] = {7: 0.5, "x" * 70_000: 0.0}
    reply = answer_to(open_server(), raw_frame({**GENERATE, "logit_bias": biases}))
    assert reply.details["field"] == "logit_bias"
    assert str(reply.details["value"]).endswith(" bytes)")


def test_unknown_fields_are_ignored() -> None:
    fields = {**GENERATE, "later": [{"a": 1}], "temperature": 1}
    assert message_in(open_server(), raw_frame(fields)) == Generate(1, "hi", temperature=1.0)


def test_the_last_of_two_equal_keys_counts() -> None:
    payload = b"\x83\xa4type\xaaget_status\xaarequest_id\x01\xaarequest_id\x02"
    assert message_in(open_server(), b"\x00\x00\x00" + bytes([len(payload)]) + payload) == (
        GetStatus(2)
    )


def test_defaults_are_left_out() -> None:
    assert b"temperature" not in encode_frame(Generate(1, "hi"))
