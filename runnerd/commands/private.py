"""A daemon for one command alone, and chat prompts for whatever daemon there is."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import typer

from runnerd.chat import Content
from runnerd.client import ChatError, ChatMessage, Client
from runnerd.commands.failure import BAD_INPUT, CommandFailed, connected
from runnerd.commands.progress import LoadBar
from runnerd.harmless import harmless
from runnerd.launcher import Runner, launch
from runnerd.models import resolve_model
from runnerd_protocol.messages import Prompt


def private_daemon(
    model: str,
    engine: str,
    *,
    slots: int,
    verbose: bool,
    lora: Sequence[str] = (),
    mmproj: Path | None = None,
) -> AbstractAsyncContextManager[Runner]:
    """Start a daemon that ends with the block; with `verbose` its warnings go to stderr."""
    return launch(
        model if engine == "reference" else resolve_model(model),
        slots=slots,
        options=(
            f"--engine={engine}",
            "--log-level=warning",
            *(f"--lora={adapter}" for adapter in lora),
            *([] if mmproj is None else [f"--mmproj={mmproj}"]),
        ),
        on_line=_echo if verbose else None,
    )


@asynccontextmanager
async def any_daemon(
    socket: Path | None,
    model: str | None,
    engine: str,
    *,
    verbose: bool = False,
    lora: Sequence[str] = (),
    mmproj: Path | None = None,
) -> AsyncIterator[Client]:
    """Connect to the daemon at a socket, or else to one of our own on the model, when ready."""
    if socket is not None:
        async with connected(socket) as client:
            yield client
        return
    assert model is not None
    with LoadBar() as bar:
        private = private_daemon(model, engine, slots=1, verbose=verbose, lora=lora, mmproj=mmproj)
        async with private as child:
            await child.ready(bar.show_status)
            yield child.client


def _echo(line: str) -> None:
    typer.echo(harmless(line), err=True)


async def chat_prompt(client: Client, content: Content, system: str = "") -> Prompt:
    """Return a user's message as a prompt, by the template of the model that is loaded."""
    messages = [ChatMessage("system", system)] if system else []
    messages.append(ChatMessage("user", content))
    try:
        return await client.chat_prompt(messages)
    except ChatError as err:
        raise CommandFailed(str(err), BAD_INPUT) from err
