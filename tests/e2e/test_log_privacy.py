"""What clients write and what they are answered is in no line of the log, at any level."""

import json
import signal
from collections.abc import Iterator

import anyio
import pytest

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Adapter,
    ClientMessage,
    Delta,
    Detokenize,
    Embed,
    Failed,
    Finished,
    Generate,
    Hello,
    Media,
    MediaPart,
    MediaWanted,
    Plan,
    ProtocolError,
    TextPart,
    Tokenize,
)
from tests.about_images import hash_of
from tests.daemon import RawClient
from tests.daemon_process import DaemonProcess, start_daemon_process

pytestmark = pytest.mark.anyio

SECRET = "Xanthippe"
FORGED = '\n{"event":"daemon.stopped"}\r\x1b[2J\u2028\x00'
FILE = SECRET.encode() * 10


def requests() -> Iterator[ClientMessage | bytes]:
    """Yield requests of every kind, and with every kind of fault, all about the secret."""
    yield Generate(1, SECRET, max_tokens=20, stop=[SECRET], cache_scope=SECRET)
    yield Generate(2, SECRET, max_tokens=3, n=2, logprobs=2, return_progress=True)
    yield Generate(3, SECRET * 1000)
    yield Generate(4, SECRET, grammar=SECRET)
    yield Generate(5, SECRET, json_schema=f'{{"type": "{SECRET}"}}')
    yield Generate(6, SECRET, grammar=f'root ::= "{SECRET}"')
    yield Generate(7, SECRET, adapters=[Adapter(SECRET + FORGED)])
    yield Generate(8, SECRET, stop=[SECRET + "\0"], dry_breakers=(SECRET,))
    yield Generate(9, [TextPart(SECRET), MediaPart(hash_of(FILE))], max_tokens=1)
    yield Generate(10, SECRET, max_tokens=5, queue_timeout_s=0.001)
    yield Embed(11, [SECRET, SECRET * 2])
    yield Embed(12, [SECRET * 1000])
    yield Embed(13, [SECRET, ""])
    yield Tokenize(14, SECRET)
    yield Detokenize(15, list(SECRET.encode()))
    yield Detokenize(16, [2**31 - 1])
    yield Plan(17, kv_type=SECRET)  # type: ignore[arg-type]  # not one that there is
    yield Generate(18, SECRET, priority=SECRET)  # type: ignore[arg-type]  # likewise
    yield Generate(19, SECRET, temperature=-1.0)
    yield Generate(19, SECRET, max_tokens=1, cache_scope=SECRET + FORGED)
    yield b"\0\0\0\x0a\xa9" + SECRET.encode()  # a frame that is a text
    yield encode_frame(Tokenize(20, SECRET)).replace(b"tokenize", SECRET[:8].encode())
    yield encode_frame(Tokenize(21, SECRET)).replace(b"prompt", SECRET[:6].encode())


async def ask_everything(daemon: DaemonProcess) -> str:
    """Send all of it and wait for the answers; return what was said."""
    said = ""
    async with await anyio.connect_unix(daemon.path) as stream:
        client = RawClient(stream)
        await client.send(Hello(1, 1, SECRET + FORGED), *requests())
        unanswered = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 19}
        while unanswered:
            match await client.receive():
                case Delta(request_id=1, text=text):
                    said += text
                case Finished(request_id=request_id) | Failed(request_id=request_id):
                    unanswered.discard(request_id)
                case MediaWanted(request_id=request_id):
                    await client.send(Media(request_id, FILE))
    return said


async def leave_rudely(daemon: DaemonProcess) -> None:
    """End connections in ways that are logged."""
    request = encode_frame(Generate(1, SECRET, max_tokens=20))
    last_words: list[bytes] = [
        request,
        request + b"\xff\xff\xff\xff" + SECRET.encode(),
        request + request[:-5],
        encode_frame(ProtocolError(SECRET + FORGED, SECRET + FORGED, fatal=True)),
    ]
    for greeting in (encode_frame(Hello(1, 1, SECRET)), b""):
        for each in last_words:
            async with await anyio.connect_unix(daemon.path) as stream:
                client = RawClient(stream)
                await client.send(greeting + each)
                client.shut_down_sending()
                if each is not request:
                    await client.rest()


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_no_text_of_a_client_and_none_of_an_answer_is_logged(log_format: str) -> None:
    options = ("--log-level", "debug", "--log-format", log_format, "--image-rows", "4")
    async with start_daemon_process("layers=0", *options) as daemon:
        said = await ask_everything(daemon)
        await leave_rudely(daemon)
        daemon.signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0
        assert len(said) >= 10
        assert said not in daemon.log
        for secret in (SECRET, FILE.hex()[:20], FILE.hex(" ")[:20]):
            assert secret not in daemon.log
        assert daemon.log.replace("\n", "").isprintable()
        if log_format == "json":
            events = [json.loads(line)["event"] for line in daemon.log.splitlines()]
            assert events.count("daemon.stopped") == 1
            assert {"request.finished", "request.failed", "client.complained"} <= set(events)
