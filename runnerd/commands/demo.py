"""`runnerd demo`: what it looks like when one model serves several at once."""

import sys
from typing import Annotated, Literal

import anyio
import typer

from runnerd.commands.failure import translated
from runnerd.commands.private import chat_prompt, private_daemon
from runnerd.commands.progress import LoadBar
from runnerd.harmless import harmless_line
from runnerd.models import DEFAULT_MODEL
from runnerd_protocol.messages import Prompt


def demo(
    model: Annotated[
        str, typer.Option(help="A GGUF file, or the alias 'smollm2'.")
    ] = DEFAULT_MODEL,
    engine: Annotated[
        Literal["llama", "reference"], typer.Option(help="What runs the model.")
    ] = "llama",
    max_tokens: Annotated[int, typer.Option(help="Of each answer.", min=1)] = 120,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines, as when stdout is no terminal.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="The daemon's warnings to stderr.")
    ] = False,
) -> None:
    """Answer four questions at once, side by side, and show how fast.

    Starts a private daemon, which ends with the command.
    """
    is_live = not plain and sys.stdout.isatty()
    with translated():
        anyio.run(_run, model, engine, max_tokens, is_live, verbose)


async def _run(model: str, engine: str, max_tokens: int, is_live: bool, verbose: bool) -> None:
    from runnerd.commands.output import Output  # Rich is for people: nobody else waits for it
    from runnerd.demo import QUESTIONS, show

    console = Output()
    with LoadBar() as bar:
        async with private_daemon(model, engine, slots=len(QUESTIONS), verbose=verbose) as child:
            await child.ready(bar.show_status)
            loaded = await child.client.model()
            prompts: list[Prompt] = list(QUESTIONS)
            if loaded.chat_template:
                prompts = [await chat_prompt(child.client, question) for question in QUESTIONS]
            name = harmless_line(loaded.name)
            heading = f"{len(prompts)} questions to {name} at once, on one connection\n"
            console.print(heading, markup=False)
            await show(child.client, prompts, max_tokens, console, is_live=is_live)
