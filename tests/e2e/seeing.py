"""Daemons that see, and questions about pictures whose answers show what was seen."""

from collections.abc import Iterator

from anyio.from_thread import start_blocking_portal

from loadtest.pictures import picture
from runnerd.client import Client
from runnerd_protocol.messages import MediaPart, Part, TextPart
from tests.daemon_process import DaemonProcess, start_daemon_process
from tests.e2e.asking import GREEDY, Answer, ask
from tests.engine.vision_files import VisionModel

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "purple", "pink")
QUESTION = "What is the color of the picture?"
LONG_QUESTION = 3 * "A picture can be red, blue, or of any other color. " + QUESTION
ANSWER = "\nAnswer: The color is"


def seeing_daemon(files: VisionModel, *options: str) -> Iterator[DaemonProcess]:
    """Run a daemon that reads images, exactly: a prompt's cut into passes changes nothing."""
    flags = ("--mmproj", files.mmproj, "--threads", "1", "--flash-attn", "off", *options)
    with start_blocking_portal() as portal:
        daemon = start_daemon_process(files.model, *flags, engine="llama")
        with portal.wrap_async_context_manager(daemon) as process:
            yield process


def parts(*given: str | bytes) -> list[Part]:
    """Return a prompt of texts and image files."""
    return [TextPart(one) if isinstance(one, str) else MediaPart(one) for one in given]


def plain(name: str, width: int = 32) -> bytes:
    """Return a picture of one colour."""
    return picture([name], width=width)


async def colour_of(
    client: Client, image: bytes, question: str = QUESTION, **options: object
) -> Answer:
    """Ask SmolLM2 for the colour of a picture; the answer is one word."""
    prompt = parts(question, image, ANSWER)
    return await ask(client, prompt, max_tokens=1, **{**GREEDY, **options})
