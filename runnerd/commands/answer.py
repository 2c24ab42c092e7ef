"""An answer on stdout as it comes, and what is told of it at the end."""

import sys

import msgspec
import typer

from runnerd.client import Client, Completion, GenerateOptions
from runnerd.harmless import harmless, harmless_json
from runnerd.results import completion_of
from runnerd_protocol.messages import Delta, Finished, Prompt


async def stream_answer(
    client: Client, prompt: Prompt, options: GenerateOptions, *, quiet: bool
) -> Completion:
    """Write the text to stdout as it comes, unless `quiet`; of several texts each as a whole."""
    deltas: list[Delta] = []
    has_several = options.get("n", 1) != 1
    async with client.generate(prompt, **options) as stream:
        async for delta in stream:
            deltas.append(delta)
            if not (quiet or has_several):
                _write(delta.text)
        assert stream.finished is not None
    done = completion_of(deltas, stream.finished)
    if quiet:
        return done
    if not has_several:
        _end_line(done.text)
        return done
    for number, choice in enumerate(done.choices, start=1):
        _write(f"[{number}] {choice.text}")
        _end_line(choice.text)
    return done


def _write(text: str) -> None:
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _end_line(text: str) -> None:
    if not text.endswith("\n"):
        _write("\n")


def write_json(done: Completion) -> None:
    """Write a completion as one line: the fields of `Finished`, and its texts."""
    fields: dict[str, object] = {**msgspec.structs.asdict(done.finished), "text": done.text}
    del fields["request_id"]
    fields["choices"] = [
        {**msgspec.structs.asdict(choice.summary), "text": choice.text} for choice in done.choices
    ]
    sys.stdout.write(harmless_json(msgspec.json.encode(fields)) + "\n")
    sys.stdout.flush()


def write_summary(finished: Finished) -> None:
    """Write usage and timings to stderr."""
    times = finished.timings
    why = (
        f"{finished.reason} {finished.stop_sequence!r}"
        if finished.stop_sequence
        else (finished.reason)
    )
    cut = f", {finished.n_truncated} cut off" if finished.n_truncated else ""
    rate = (finished.n_generated - 1) / times.decode_ms * 1e3 if times.decode_ms else 0.0
    typer.echo(
        f"prompt {finished.n_prompt} tokens ({finished.n_cached} cached{cut}),"
        f" generated {finished.n_generated}, ended by {why}, seed {finished.seed}\n"
        f"queue {times.queue_ms:.0f} ms, TTFT {times.ttft_ms:.0f} ms, ITL p50"
        f" {times.itl_p50_ms:.1f} ms p95 {times.itl_p95_ms:.1f} ms, {rate:.1f} tokens/s",
        err=True,
    )
