"""`runnerd generate`: one completion, streamed to stdout."""

import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import anyio
import typer

from runnerd.client import CannotRead, CannotSend, GenerateOptions
from runnerd.commands.answer import stream_answer, write_json, write_summary
from runnerd.commands.failure import (
    NO_INPUT,
    REQUEST_FAILED,
    USAGE,
    CommandFailed,
    translated,
)
from runnerd.commands.path_options import file_option, socket_option
from runnerd.commands.private import any_daemon, chat_prompt
from runnerd.prompt_parts import read_image
from runnerd_protocol.framing import DEFAULT_MAX_FRAME_BYTES
from runnerd_protocol.messages import Adapter, MediaPart, Prompt, TextPart


def _number(what: str, low: float, high: float) -> object:
    """Return an option for a number in these bounds; typer's own would let NaN look negative."""

    def check(value: float | None) -> float | None:
        if value is not None and not low <= value <= high:  # NaN is not
            raise typer.BadParameter(f"{value:g} is not between {low:g} and {high:g}")
        return value

    return typer.Option(help=what, callback=check, metavar=f"{low:g}..{high:g}")


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from stdin.")],
    socket: Annotated[Path | None, socket_option("Ask the daemon here.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Start a private daemon on this model for the one call."),
    ] = None,
    engine: Annotated[
        Literal["llama", "reference"], typer.Option(help="Of the private daemon.")
    ] = "llama",
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt as a user's message to the model.")
    ] = False,
    system: Annotated[str, typer.Option(help="A system message before it.")] = "",
    image: Annotated[
        list[Path] | None, file_option("An image before the text; may be repeated.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Generate at most so many.")] = None,
    temperature: Annotated[
        float | None, _number("0: always the likeliest token.", 0.0, 100.0)
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Out of the likeliest k; 0: of all.")
    ] = None,
    top_p: Annotated[
        float | None, _number("Out of the likeliest, up to this sum.", 0.0, 1.0)
    ] = None,
    min_p: Annotated[
        float | None, _number("None below this share of the likeliest.", 0.0, 1.0)
    ] = None,
    repeat_penalty: Annotated[
        float | None, _number("Above 1: fewer repetitions.", 0.01, 100.0)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be repeated.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut a prompt that is too long.")
    ] = False,
    shift: Annotated[
        bool, typer.Option("--shift", help="Go on past the context's end, forgetting the start.")
    ] = False,
    grammar: Annotated[Path | None, file_option("GBNF that the text must follow.")] = None,
    json_schema: Annotated[Path | None, file_option("A JSON schema that it must follow.")] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="Apply a LoRA adapter of the daemon; may be repeated.", metavar="NAME[=SCALE]"
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="Load it into the private daemon; may be repeated.", metavar="NAME=PATH"),
    ] = None,
    mmproj: Annotated[
        Path | None,
        file_option("What the private daemon reads images with: the model's projector."),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, max=64, help="So many completions.")] = 1,
    timeout: Annotated[float | None, _number("End after so many seconds.", 0.001, 86400.0)] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Usage and timings to stderr.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="No stream: one JSON object at the end.")
    ] = False,
) -> None:
    """Complete a prompt, streaming the text to stdout.

    With --json, stdout gets one object: the fields of the protocol's `Finished`, and `text`. With
    --n above 1 there is no stream either: each text as a whole, with its number before it.

    Exit status: 0 complete, 1 the daemon could not serve the request (stderr says its code) or
    the time was over before the first token, 64 usage, 65 with --chat: the model's template cannot
    render the messages, 66 a file cannot be read, 69 nobody listens or the connection broke; of a
    private daemon, its own.
    """
    if (socket is None) == (model is None):
        raise CommandFailed("give either --socket or --model", USAGE)
    if system and not chat:
        raise CommandFailed("--system goes with --chat", USAGE)
    if lora and model is None:
        raise CommandFailed(
            "--lora goes with --model: a daemon has what it was started with", USAGE
        )
    if mmproj and model is None:
        raise CommandFailed(
            "--mmproj goes with --model: a daemon has what it was started with", USAGE
        )
    if adapter and model is not None and not lora:
        raise CommandFailed("--adapter needs --lora NAME=PATH, for a daemon on --model", USAGE)
    if grammar and json_schema:
        raise CommandFailed("give either --grammar or --json-schema", USAGE)
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
        "stop": stop or None,
        "grammar": _read_file(grammar),
        "json_schema": _read_file(json_schema),
        "adapters": [_adapter(each) for each in adapter or ()] or None,
        "timeout_s": timeout,
        "n": n,
        "truncate": truncate,
        "shift": shift,
    }
    # Their types are those of the parameters above.
    options = cast("GenerateOptions", {k: v for k, v in given.items() if v is not None})
    images = [_read_image(path) for path in image or ()]
    text = _read_prompt(prompt)

    async def run() -> None:
        async with any_daemon(
            socket, model, engine, verbose=verbose, lora=lora or (), mmproj=mmproj
        ) as client:
            asked: Prompt = [*images, TextPart(text)] if images else text
            if chat:
                asked = await chat_prompt(client, [*images, text], system)
            done = await stream_answer(client, asked, options, quiet=json)
        if json:
            write_json(done)
        if verbose:
            write_summary(done.finished)
        if done.finished.reason == "cancelled":  # not by us: the text is incomplete
            raise CommandFailed("cancelled: the daemon is shutting down", REQUEST_FAILED)
        if done.finished.reason == "timeout" and not done.finished.n_generated:
            raise CommandFailed(f"no token came within {timeout} s", REQUEST_FAILED)

    with translated():
        anyio.run(run)


def _read_prompt(argument: str) -> str:
    if argument == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    # What is no UTF-8 came in as lone surrogates, which cannot be sent.
    return argument.encode(errors="surrogateescape").decode(errors="replace")


def _read_image(path: Path) -> MediaPart:
    if path == Path("-"):
        raise CommandFailed("--image takes a file: stdin is for the prompt", USAGE)
    try:
        return MediaPart(read_image(path, DEFAULT_MAX_FRAME_BYTES))
    except CannotRead as err:
        raise CommandFailed(str(err), NO_INPUT) from err
    except CannotSend as err:
        raise CommandFailed(str(err), REQUEST_FAILED) from err


def _read_file(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "not UTF-8"
        raise CommandFailed(f"cannot read {path}: {why}", NO_INPUT) from err


def _adapter(argument: str) -> Adapter:
    name, _, scale = argument.partition("=")
    try:
        return Adapter(name, float(scale or 1.0))
    except ValueError as err:
        raise CommandFailed(f"--adapter {argument}: the scale is no number", USAGE) from err
