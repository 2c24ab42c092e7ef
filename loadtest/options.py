"""Options that several commands have."""

from typing import Annotated

import typer

MOST_STREAMS = 256  # llama.cpp's limit on slots

Streams = Annotated[int, typer.Option(min=1, max=MOST_STREAMS, help="At the same time.")]
PromptTokens = Annotated[int, typer.Option(min=1, max=2**20, help="Of each prompt.")]
MaxTokens = Annotated[int, typer.Option(min=1, max=2**20, help="Generated per stream.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Each with prompts of its own.")]
Seed = Annotated[int, typer.Option(help="Of the prompts.")]
Model = Annotated[str, typer.Option(help="A GGUF file, or the alias 'smollm2'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TimeLimit = Annotated[float, typer.Option(min=1.0, max=86400.0, help="Seconds until giving up.")]
