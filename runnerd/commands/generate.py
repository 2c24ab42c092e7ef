"""`runnerd generate`: one completion, streamed to stdout."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import anyio
import msgspec
import typer

from runnerd.client import Client
from runnerd.commands.failure import (
    REQUEST_FAILED,
    USAGE,
    CommandFailed,
    connected,
    translated,
)
from runnerd.commands.private import chat_prompt, private_daemon
from runnerd.commands.progress import LoadBar
from runnerd.harmless import harmless
from runnerd_protocol.messages import Finished, Prompt


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from stdin.")],
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Ask the daemon here.", metavar="PATH")
    ] = None,
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
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Generate at most so many.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0: always the likeliest token.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Out of the likeliest k; 0: of all.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Out of the likeliest, up to this sum.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="None below this share of the likeliest.")
    ] = None,
    repeat_penalty: Annotated[
        float | None, typer.Option(min=0.01, help="Above 1: fewer repetitions.")
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Usage and timings to stderr.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="No stream: one JSON object at the end.")
    ] = False,
) -> None:
    """Complete a prompt, streaming the text to stdout.

    With --json, stdout gets one object: the fields of the protocol's `Finished`, and `text`.

    Exit status: 0 complete, 1 the daemon could not serve the request (stderr says its code),
    64 usage, 69 nobody listens or the connection broke; of a private daemon, its own.
    """
    if (socket is None) == (model is None):
        raise CommandFailed("give either --socket or --model", USAGE)
    if system and not chat:
        raise CommandFailed("--system goes with --chat", USAGE)
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
        "stop": stop or None,
    }
    options: dict[str, object] = {k: v for k, v in given.items() if v is not None}
    text = _read_prompt(prompt)

    async def run() -> None:
        async with _daemon(socket, model, engine, verbose=verbose) as client:
            asked: Prompt = await chat_prompt(client, text, system) if chat else text
            whole, finished = await _stream(
                client, asked, {**options, "truncate": truncate, "shift": shift}, quiet=json
            )
        if json:
            _write_json(whole, finished)
        if verbose:
            typer.echo(_summary(finished), err=True)
        if finished.reason == "cancelled":  # not by us: the text is incomplete
            raise CommandFailed("cancelled: the daemon is shutting down", REQUEST_FAILED)

    with translated():
        anyio.run(run)


def _read_prompt(argument: str) -> str:
    if argument == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    # What is no UTF-8 came in as lone surrogates, which cannot be sent.
    return argument.encode(errors="surrogateescape").decode(errors="replace")


@asynccontextmanager
async def _daemon(
    socket: Path | None, model: str | None, engine: str, *, verbose: bool
) -> AsyncIterator[Client]:
    if socket is not None:
        async with connected(socket) as client:
            yield client
        return
    assert model is not None
    with LoadBar() as bar:
        async with private_daemon(model, engine, slots=1, verbose=verbose) as child:
            await child.ready(bar.show_status)
            yield child.client


async def _stream(
    client: Client, prompt: Prompt, options: dict[str, object], *, quiet: bool
) -> tuple[str, Finished]:
    pieces = []
    is_terminal = sys.stdout.isatty()
    async with client.generate(prompt, **options) as stream:
        async for delta in stream:
            pieces.append(delta.text)
            if not quiet:
                sys.stdout.write(harmless(delta.text) if is_terminal else delta.text)
                sys.stdout.flush()
        assert stream.finished is not None
    text = "".join(pieces)
    if not quiet and not text.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    return text, stream.finished


def _write_json(text: str, finished: Finished) -> None:
    fields = {**msgspec.structs.asdict(finished), "text": text}
    del fields["request_id"]
    sys.stdout.write(msgspec.json.encode(fields).decode() + "\n")
    sys.stdout.flush()


def _summary(finished: Finished) -> str:
    times = finished.timings
    why = (
        f"{finished.reason} {finished.stop_sequence!r}"
        if finished.stop_sequence
        else (finished.reason)
    )
    cut = f", {finished.n_truncated} cut off" if finished.n_truncated else ""
    decode_s = (times.total_ms - times.ttft_ms) / 1e3
    rate = (finished.n_generated - 1) / decode_s if finished.n_generated > 1 and decode_s else 0.0
    return (
        f"prompt {finished.n_prompt} tokens ({finished.n_cached} cached{cut}),"
        f" generated {finished.n_generated}, ended by {why}, seed {finished.seed}\n"
        f"queue {times.queue_ms:.0f} ms, TTFT {times.ttft_ms:.0f} ms, ITL p50"
        f" {times.itl_p50_ms:.1f} ms p95 {times.itl_p95_ms:.1f} ms, {rate:.1f} tokens/s"
    )
