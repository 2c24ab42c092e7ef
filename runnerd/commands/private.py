"""A daemon for one command alone, and chat prompts for whatever daemon there is."""

import importlib.util
from contextlib import AbstractAsyncContextManager

import typer

from runnerd.client import Client
from runnerd.commands.failure import BAD_INPUT, UNAVAILABLE, CommandFailed
from runnerd.launcher import Child, launch
from runnerd.models import resolve_model
from runnerd_protocol.messages import Prompt


def private_daemon(
    model: str, engine: str, *, slots: int, verbose: bool
) -> AbstractAsyncContextManager[Child]:
    """Start a daemon that ends with the block; with `verbose` its warnings go to stderr."""
    return launch(
        model if engine == "reference" else resolve_model(model),
        slots=slots,
        options=(f"--engine={engine}", "--log-level=warning"),
        on_line=_echo if verbose else None,
    )


def _echo(line: str) -> None:
    typer.echo(line, err=True)


async def chat_prompt(client: Client, content: str, system: str = "") -> Prompt:
    """Return a user's message as a prompt, by the template of the model that is loaded."""
    if importlib.util.find_spec("jinja2") is None:
        raise CommandFailed("chat needs jinja2; to install it: pip install jinja2", UNAVAILABLE)
    from runnerd.chat import ChatError, ChatMessage, render_chat  # optional, and not always used

    model = await client.model()
    messages = [ChatMessage("system", system)] if system else []
    messages.append(ChatMessage("user", content))
    try:
        return [*render_chat(model.chat_template, messages)]
    except ChatError as err:
        raise CommandFailed(str(err), BAD_INPUT) from err
