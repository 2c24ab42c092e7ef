"""`runnerd embed`: texts to embeddings, a JSON line each."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import anyio
import msgspec
import typer

from runnerd.commands.failure import USAGE, CommandFailed, translated
from runnerd.commands.path_options import socket_option
from runnerd.commands.private import any_daemon
from runnerd_protocol.messages import Pooling, Prompt


class EmbeddingLine(msgspec.Struct, frozen=True):
    """What is written of a text."""

    index: int
    embedding: list[float]


def embed(
    texts: Annotated[list[str], typer.Argument(help="The texts; '-' reads one a line from stdin.")],
    socket: Annotated[Path | None, socket_option("Ask the daemon here.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Start a private daemon on this model for the one call.")
    ] = None,
    engine: Annotated[
        Literal["llama", "reference"], typer.Option(help="Of the private daemon.")
    ] = "llama",
    pooling: Annotated[
        Literal["model", "mean", "cls", "last"],
        typer.Option(help="How tokens become one vector; model: as it was trained."),
    ] = "model",
    raw: Annotated[bool, typer.Option("--raw", help="Do not scale vectors to length 1.")] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut a text that is too long.")
    ] = False,
) -> None:
    """Turn texts into embeddings: one JSON object a line, in order, with `index` and `embedding`.

    Exit status: 0 complete, 1 the daemon could not serve the request (stderr says its code),
    64 usage, 69 nobody listens or the connection broke; of a private daemon, its own.
    """
    if (socket is None) == (model is None):
        raise CommandFailed("give either --socket or --model", USAGE)
    inputs = _read_texts(texts)
    if not inputs:  # no daemon has to be asked for nothing
        return

    async def run() -> None:
        chosen: Pooling = pooling
        async with any_daemon(socket, model, engine) as client:
            vectors = await client.embed(
                inputs, pooling=chosen, normalize=not raw, truncate=truncate
            )
        for index, vector in enumerate(vectors):
            line = msgspec.json.encode(EmbeddingLine(index, vector.tolist()))
            sys.stdout.write(line.decode() + "\n")
        sys.stdout.flush()

    with translated():
        anyio.run(run)


def _read_texts(arguments: list[str]) -> list[Prompt]:
    texts: list[Prompt] = []
    for argument in arguments:
        if argument == "-":
            texts += sys.stdin.buffer.read().decode(errors="replace").splitlines()
        else:  # what is no UTF-8 came in as lone surrogates, which cannot be sent
            texts.append(argument.encode(errors="surrogateescape").decode(errors="replace"))
    return texts
