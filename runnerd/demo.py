"""The demonstration: four questions on one connection, their answers growing side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import anyio
from rich.console import Console
from rich.containers import Lines
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from runnerd.client import Client
from runnerd.harmless import harmless
from runnerd_protocol.messages import Finished, Prompt

QUESTIONS = (
    "Why is the sky blue? Explain it to a child.",
    "Write a short story about a lighthouse keeper.",
    "How do I make a good cup of tea?",
    "What is a prime number? Give some examples.",
)
STYLES = ("cyan", "magenta", "green", "yellow")
WIDE = 110  # from so many columns on, four answers fit beside each other
PLAIN_WIDTH = 72  # a line of plain output ends at the first space from here on
BORDER_COLUMNS = 4  # borders and padding of a panel
BORDER_LINES = 2
SEED = 1  # the same answers each time


@dataclass(slots=True, eq=False)
class Answer:
    """One question and what has come of its answer."""

    number: int
    question: str
    prompt: Prompt
    text: str = ""
    n_printed: int = 0
    finished: Finished | None = None


async def show(
    client: Client, prompts: Sequence[Prompt], max_tokens: int, console: Console, *, is_live: bool
) -> None:
    """Ask everything at once; show the answers while they grow, then the figures.

    `prompts` are the `QUESTIONS`, put in the way that the model wants.
    """
    answers = [
        Answer(number, question, prompt)
        for number, (question, prompt) in enumerate(zip(QUESTIONS, prompts, strict=True), 1)
    ]
    started_at = monotonic()
    if is_live:
        await _ask_live(client, answers, max_tokens, console)
    else:
        await _ask_plain(client, answers, max_tokens, console)
    console.print(_figures(answers, monotonic() - started_at))


async def _ask_live(
    client: Client, answers: list[Answer], max_tokens: int, console: Console
) -> None:
    def view() -> Table:
        return _side_by_side(answers, console, console.height - 2)

    with Live(get_renderable=view, console=console, transient=True, refresh_per_second=12) as live:
        live.refresh()  # the questions, before there is an answer
        await _ask_all(client, answers, max_tokens, lambda _: None)
    console.print(_side_by_side(answers, console, None))


async def _ask_plain(
    client: Client, answers: list[Answer], max_tokens: int, console: Console
) -> None:
    for answer in answers:
        console.print(f"{answer.number}? {answer.question}", markup=False, soft_wrap=True)

    def show(answer: Answer) -> None:
        for line in _new_lines(answer):
            console.print(f"{answer.number}: {line}", markup=False, soft_wrap=True)

    await _ask_all(client, answers, max_tokens, show)
    console.print()


async def _ask_all(
    client: Client, answers: list[Answer], max_tokens: int, on_news: Callable[[Answer], None]
) -> None:
    async def ask(answer: Answer) -> None:
        async with client.generate(answer.prompt, max_tokens=max_tokens, seed=SEED) as stream:
            async for delta in stream:
                answer.text += harmless(delta.text)
                on_news(answer)
        answer.finished = stream.finished
        on_news(answer)

    try:
        async with anyio.create_task_group() as tasks:
            for answer in answers:
                tasks.start_soon(ask, answer)
    except ExceptionGroup as group:  # they mostly fail together, and for one cause
        raise group.exceptions[0] from None


def _new_lines(answer: Answer) -> list[str]:
    """Return lines of the answer that are complete and have not been printed."""
    lines = []
    while rest := answer.text[answer.n_printed :]:
        end = rest.find("\n", 0, PLAIN_WIDTH + 1)
        if end < 0:
            end = rest.find(" ", PLAIN_WIDTH)
            newline = rest.find("\n", PLAIN_WIDTH)
            end = min(end, newline) if min(end, newline) >= 0 else max(end, newline)
        if end < 0 and answer.finished is None:
            break
        end = len(rest) if end < 0 else end
        answer.n_printed += end + 1
        if rest[:end].strip():
            lines.append(rest[:end])
    return lines


# --- how it looks ------------------------------------------------------------------------------


def _side_by_side(answers: list[Answer], console: Console, height: int | None) -> Table:
    """Return the answers as panels; in a limited height each shows the end of its text."""
    n_columns = len(answers) if console.width >= WIDE else 2
    n_rows = -(-len(answers) // n_columns)
    width = console.width // n_columns
    grid = Table.grid()
    for start in range(0, len(answers), n_columns):
        row = answers[start : start + n_columns]
        texts = [_wrapped(answer, console, width - BORDER_COLUMNS) for answer in row]
        if height is None:
            n_lines = max(len(question) + len(text) for question, text in texts)
        else:
            n_lines = max(2, height // n_rows - BORDER_LINES)
        grid.add_row(
            *(
                _panel(answer, question, text, width, n_lines)
                for answer, (question, text) in zip(row, texts, strict=True)
            )
        )
    return grid


def _wrapped(answer: Answer, console: Console, width: int) -> tuple[Lines, Lines]:
    question = Text(answer.question, style=f"bold {_style(answer)}")
    text = Text(answer.text.strip(), overflow="fold")
    return question.wrap(console, width), text.wrap(console, width)


def _panel(answer: Answer, question: Lines, text: Lines, width: int, n_lines: int) -> Panel:
    n_free = max(0, n_lines - len(question))
    shown = [*question, *text[max(0, len(text) - n_free) :]]
    return Panel(
        Text("\n").join(shown),
        width=width,
        height=n_lines + BORDER_LINES,
        border_style="dim" if answer.finished else _style(answer),
        title=str(answer.number),
        subtitle=_pace(answer),
    )


def _style(answer: Answer) -> str:
    return STYLES[(answer.number - 1) % len(STYLES)]


def _pace(answer: Answer) -> str:
    if answer.finished is None:
        return "waiting" if not answer.text else "..."
    return f"{answer.finished.n_generated} tokens"


def _figures(answers: list[Answer], elapsed_s: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("stream", "tokens", "TTFT", "ITL p50", "ITL p95", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    n_tokens = 0
    for answer in answers:
        finished = answer.finished
        assert finished is not None
        times = finished.timings
        n_tokens += finished.n_generated
        table.add_row(
            str(answer.number),
            str(finished.n_generated),
            f"{times.ttft_ms:.0f} ms",
            f"{times.itl_p50_ms:.1f} ms",
            f"{times.itl_p95_ms:.1f} ms",
            f"{finished.n_generated / max(times.total_ms / 1e3, 1e-9):.1f}",
        )
    table.add_section()
    table.add_row("all", str(n_tokens), "", "", "", f"{n_tokens / elapsed_s:.1f}")
    return table
