import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd_protocol.errors import FrameTooLarge, LocalProtocolError, MessageTooLarge
from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import Cancel, Delta
from tests.protocol.builders import frame


def test_a_frame_is_a_big_endian_length_and_a_payload() -> None:
    encoded = encode_frame(Cancel(1))
    assert encoded[:4] == (len(encoded) - 4).to_bytes(4, "big")
    assert FrameDecoder().feed(encoded) == [encoded[4:]]


@settings(deadline=None)
@given(payloads=st.lists(st.binary(max_size=40), max_size=8), data=st.data())
def test_the_cuts_of_a_stream_do_not_change_its_payloads(
    payloads: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(map(frame, payloads))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    decoder = FrameDecoder(max_frame_bytes=40)
    found: list[bytes] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:stop])
    assert found == payloads
    assert decoder.n_frames == len(payloads)
    assert not decoder.is_mid_frame


@settings(deadline=None)
@given(payload=st.binary(max_size=8))
def test_a_frame_is_under_way_from_its_first_byte_to_its_last(payload: bytes) -> None:
    decoder = FrameDecoder()
    encoded = frame(payload)
    for index in range(1, len(encoded)):
        assert decoder.feed(encoded[index - 1 : index]) == []
        assert decoder.is_mid_frame
        assert decoder.n_missing == (len(encoded) if index >= 4 else 4) - index
    assert decoder.feed(encoded[-1:]) == [payload]
    assert not decoder.is_mid_frame
    assert decoder.n_missing == 0


def test_the_largest_frame_passes_and_a_larger_one_is_refused_by_its_header() -> None:
    assert FrameDecoder(5).feed(frame(b"12345")) == [b"12345"]
    with pytest.raises(FrameTooLarge) as caught:
        FrameDecoder(5).feed(b"\x00\x00\x00\x06")
    assert (caught.value.declared, caught.value.limit) == (6, 5)


def test_frames_before_an_oversized_one_are_not_lost() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        FrameDecoder(5).feed(frame(b"a") + frame(b"b") + b"\xff\xff\xff\xff" + frame(b"c"))
    assert caught.value.payloads == [b"a", b"b"]


def test_an_empty_payload_is_a_payload() -> None:
    assert FrameDecoder().feed(bytes(8)) == [b"", b""]


def test_no_memory_is_set_aside_for_bytes_that_have_not_come() -> None:
    decoder = FrameDecoder(2**31)
    tracemalloc.start()
    decoder.feed(b"\x7f\xff\xff\xff" + bytes(1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize(("n_bytes", "chunk"), [(16 * 2**20, 65536), (200_000, 1)])
def test_a_large_frame_arrives_in_small_chunks(n_bytes: int, chunk: int) -> None:
    payload = bytes(n_bytes)
    encoded = frame(payload)
    decoder = FrameDecoder()
    found: list[bytes] = []
    for start in range(0, len(encoded), chunk):
        found += decoder.feed(encoded[start : start + chunk])
    assert found == [payload]


def test_a_message_that_fits_no_frame_is_not_encoded() -> None:
    with pytest.raises(MessageTooLarge, match="Delta of 131 bytes, a frame holds 100"):
        encode_frame(Delta(1, "x" * 100), max_frame_bytes=100)


@pytest.mark.parametrize("message", [Delta(1, "\ud800"), Delta(2**64, "")])
def test_a_message_that_messagepack_cannot_hold_is_not_encoded(message: Delta) -> None:
    with pytest.raises(LocalProtocolError, match="Delta cannot be encoded"):
        encode_frame(message)
