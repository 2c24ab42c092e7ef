from typing import get_args

import pytest
from msgspec import msgpack

from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import ClientMessage, DaemonMessage
from tests.protocol.golden_from_clients import FROM_CLIENTS
from tests.protocol.golden_from_the_daemon import FROM_THE_DAEMON

# The bytes of version 1. A change here is a change of the protocol: clients hold it too.
GOLDEN: list[tuple[ClientMessage | DaemonMessage, str]] = [*FROM_CLIENTS, *FROM_THE_DAEMON]


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_a_message_becomes_the_bytes_of_version_1(
    message: ClientMessage | DaemonMessage, golden: str
) -> None:
    assert encode_frame(message).hex() == golden


@pytest.mark.parametrize(("message", "golden"), GOLDEN)
def test_the_bytes_of_version_1_become_the_message(
    message: ClientMessage | DaemonMessage, golden: str
) -> None:
    (payload,) = FrameDecoder().feed(bytes.fromhex(golden))
    union = ClientMessage if isinstance(message, ClientMessage) else DaemonMessage
    assert msgpack.decode(payload, type=union) == message


def test_every_message_has_golden_bytes() -> None:
    kinds = {type(message) for message, _ in GOLDEN}
    assert kinds == {*get_args(ClientMessage), *get_args(DaemonMessage)}
