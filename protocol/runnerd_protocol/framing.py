"""Frames: a 4-byte big-endian length, then as many bytes, the payload.

A byte is copied a bounded number of times however the stream is cut, and no memory is set
aside for bytes that a length announces but that have not come.
"""

from struct import Struct

from msgspec.msgpack import Encoder

from runnerd_protocol.errors import FrameTooLarge, LocalProtocolError, MessageTooLarge
from runnerd_protocol.messages import ClientMessage, DaemonMessage

DEFAULT_MAX_FRAME_BYTES = 16 * 2**20  # a prompt of 4 million tokens; bounds a client's buffer
HEADER_BYTES = 4

_read_header = Struct(">I").unpack_from
_encode = Encoder().encode


def encode_frame(
    message: ClientMessage | DaemonMessage, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
) -> bytes:
    """Return the message as one frame.

    Raises:
        MessageTooLarge: the payload is larger than `max_frame_bytes`.
        LocalProtocolError: a field holds what MessagePack cannot (a lone surrogate, 2**64).
    """
    try:
        payload = _encode(message)
    except (TypeError, ValueError, OverflowError) as err:
        raise LocalProtocolError(f"{type(message).__name__} cannot be encoded: {err}") from err
    if len(payload) > max_frame_bytes:
        raise MessageTooLarge(
            f"{type(message).__name__} of {len(payload)} bytes, a frame holds {max_frame_bytes}"
        )
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts a stream of bytes into payloads. Of no use after `FrameTooLarge`."""

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.n_frames = 0
        self._pending = bytearray()  # an incomplete frame, from its header on
        self._n_needed = HEADER_BYTES  # fewer pending bytes than this hold no news

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._pending)

    @property
    def n_pending(self) -> int:
        """How many bytes of the frame in progress have come, its length included."""
        return len(self._pending)

    @property
    def n_missing(self) -> int:
        """How many bytes the frame in progress lacks, as far as it is known; 0: there is none."""
        return self._n_needed - len(self._pending) if self._pending else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes, in order.

        Raises:
            FrameTooLarge: as soon as a header is read whose length is above the limit.
        """
        stream: bytes | memoryview = data
        if self._pending:
            self._pending += data
            if len(self._pending) < self._n_needed:
                return []
            stream = memoryview(self._pending)  # a slice of it is no copy
            self._pending = bytearray()
        payloads: list[bytes] = []
        start, n_bytes = 0, len(stream)
        self._n_needed = HEADER_BYTES
        while n_bytes - start >= HEADER_BYTES:
            (length,) = _read_header(stream, start)
            if length > self.max_frame_bytes:
                raise FrameTooLarge(length, self.max_frame_bytes, payloads)
            stop = start + HEADER_BYTES + length
            if stop > n_bytes:
                self._n_needed = HEADER_BYTES + length
                break
            payloads.append(bytes(stream[start + HEADER_BYTES : stop]))
            start = stop
        if start < n_bytes:
            self._pending += stream[start:]
        self.n_frames += len(payloads)
        return payloads
