"""What is wrong with a payload that is no message, in words that a client can act on.

Nothing here builds objects from a payload as a whole: 16 MiB of empty maps would take a
gigabyte. Fields are cut out as raw bytes, and only a short one is looked into.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from reprlib import Repr
from typing import Literal, get_args

from msgspec import DecodeError, Raw, Struct, ValidationError, convert, defstruct
from msgspec.msgpack import Decoder, Ext, decode
from msgspec.structs import fields

from runnerd_protocol.errors import Details
from runnerd_protocol.messages import ClientMessage, DaemonMessage, Media, Message, RequestId

MAX_VALUE_CHARS = 64
MAX_INSPECTED_BYTES = 65536  # a longer value is told by its size; no stop string is as long

_CLIENT_TAGS = {kind.__struct_config__.tag: kind for kind in get_args(ClientMessage)}
_DAEMON_TAGS = {kind.__struct_config__.tag: kind for kind in get_args(DaemonMessage)}
_REASON = re.compile(r"(?P<reason>.*?)(?: - at `(?P<in_key>key` in `)?\$(?P<path>[^`]*)`)?", re.S)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PATH_STEP = re.compile(r"\w+")

_NOT_READABLE = "(not readable)"


class _Abridged(Repr):
    """Prints a value in short. What would print as its address in memory says its kind."""

    def repr_Ext(self, ext: Ext, level: int) -> str:  # noqa: N802  # named after the type
        """Print an extension value, which is never ours."""
        return f"(ext {ext.code} of {memoryview(ext.data).nbytes} bytes)"


_abridged = _Abridged()
_abridged.maxstring = _abridged.maxother = MAX_VALUE_CHARS


class _TooLarge(Exception):
    """A field is not looked into; says why."""


class Envelope(Struct, frozen=True):
    """The two fields that any message may have, as raw bytes; empty where absent."""

    type: Raw = Raw()
    request_id: Raw = Raw()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a payload is refused, and the request id in it if there is a readable one.

    The id in an answer to a question is no request's own: it is in the details.
    """

    code: Literal["bad_message", "invalid_request"]
    message: str
    request_id: int | None
    details: Details


_decode_envelope = Decoder(Envelope).decode
_decode_id = Decoder(RequestId).decode
_decode_tag = Decoder(str).decode


def find_fault(payload: bytes, err: DecodeError | RecursionError) -> Fault:
    """Explain why decoding the payload as a message from a client gave `err`."""
    try:
        envelope = _decode_envelope(payload)
    except (DecodeError, RecursionError) as cause:
        return Fault("bad_message", f"not a message: {_abridge(str(cause))}", None, {})
    request_id = _read_id(envelope.request_id)
    tag = read_tag(envelope.type)
    if tag is None:
        return Fault("bad_message", "not a message: it has no type", request_id, {})
    if tag not in _CLIENT_TAGS:
        whose = "a message of the daemon" if tag in _DAEMON_TAGS else "an unknown message"
        return Fault("bad_message", f"{_abridged.repr(tag)} is {whose}", request_id, {})
    fault = _fault_of(payload, _CLIENT_TAGS[tag], err, request_id)
    if _CLIENT_TAGS[tag] is Media and request_id is not None:
        return replace(fault, request_id=None, details={"request_id": request_id, **fault.details})
    return fault


def _fault_of(
    payload: bytes,
    kind: type[Message],
    err: DecodeError | RecursionError,
    request_id: int | None,
) -> Fault:
    """Explain why a payload is no message of the kind that it says it is."""
    found = _REASON.fullmatch(str(err))
    if not isinstance(err, ValidationError) or found is None:
        return Fault("bad_message", f"not a message: {_abridge(str(err))}", request_id, {})
    path, reason = (found["path"] or "").lstrip("."), found["reason"]
    # msgspec does not say which entry of a map is bad.
    expected = {field.name: field.type for field in fields(kind)}
    name = path.removesuffix("[...]")
    if found["in_key"] and name in expected:
        key, _ = _bad_entry(payload, name, expected[name])
        return _told(name, key, reason, request_id)
    if found["in_key"]:  # not a map of ours: nothing of it can be read
        return Fault("bad_message", f"not a message: {_abridge(str(err))}", request_id, {})
    if name != path:
        key, value = _bad_entry(payload, name, expected[name])
        return _told(f"{name}[{key}]", value, reason, request_id)
    return _bad_field(payload, reason, path, request_id)


def is_from_newer_peer(payload: bytes) -> bool:
    """Whether the payload is a message of a type that this version does not know."""
    try:
        tag = read_tag(_decode_envelope(payload).type)
    except (DecodeError, RecursionError):
        return False
    return tag is not None and tag not in _CLIENT_TAGS and tag not in _DAEMON_TAGS


def read_tag(raw: Raw) -> str | None:
    """Return the message type that raw bytes hold, None if they hold no string."""
    try:
        return _decode_tag(raw)
    except DecodeError:
        return None


def _read_id(raw: Raw) -> int | None:
    try:
        return _decode_id(raw)
    except DecodeError:
        return None


def _bad_field(payload: bytes, reason: str, path: str, request_id: int | None) -> Fault:
    if missing := _MISSING.fullmatch(reason):
        field = f"{path}.{missing[1]}" if path else missing[1]
        details: Details = {"field": field, "limit": "required"}
        return Fault("invalid_request", f"{field} is missing", request_id, details)
    return _told(path, _value_at(payload, path), reason, request_id)


def _told(path: str, value: str, reason: str, request_id: int | None) -> Fault:
    is_choice = reason.startswith(("Invalid value", "Invalid enum"))
    limit = "a known value" if is_choice else reason.removeprefix("Expected ").replace("`", "")
    return Fault(
        "invalid_request",
        f"{path} is {value}, expected {limit}",
        request_id,
        {"field": path, "value": value, "limit": limit},
    )


def _value_at(payload: bytes, path: str) -> str:
    name, *steps = _PATH_STEP.findall(path)
    try:
        value = _read_field(payload, name)
        for step in steps:
            if isinstance(value, list):
                value = value[int(step)]
            elif isinstance(value, dict):
                value = value[step]
    except _TooLarge as size:
        return str(size)
    except (ValueError, LookupError, RecursionError):
        # Broken within, or the path leads nowhere: of equal keys the last one is read here.
        return _NOT_READABLE
    return _abridged.repr(value)[:MAX_VALUE_CHARS]


def _bad_entry(payload: bytes, name: str, expected: object) -> tuple[str, str]:
    """Return the first entry, printed, of a map that does not belong there."""
    try:
        entries = _read_field(payload, name)
    except _TooLarge as size:
        return str(size), str(size)
    except (ValueError, RecursionError):  # broken further on
        return _NOT_READABLE, _NOT_READABLE
    for key, value in entries.items() if isinstance(entries, dict) else ():
        try:
            convert({key: value}, expected)
        except ValidationError:
            printed = _abridged.repr(key)[:MAX_VALUE_CHARS], _abridged.repr(value)
            return printed[0], printed[1][:MAX_VALUE_CHARS]
    return _NOT_READABLE, _NOT_READABLE  # of equal keys the last one is read here


def _read_field(payload: bytes, name: str) -> object:
    raw: Raw = getattr(_decoder_of_field(name).decode(payload), name)
    if memoryview(raw).nbytes > MAX_INSPECTED_BYTES:
        raise _TooLarge(f"({memoryview(raw).nbytes} bytes)")
    value: object = decode(raw)
    return value


@cache
def _decoder_of_field(name: str) -> Decoder[Struct]:
    """Return a decoder that cuts one field out; names come from our own structs."""
    return Decoder(defstruct("Field", [(name, Raw, Raw())]))


def _abridge(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."
