"""The page and the table of a comparison: everything is in them, and nothing gets out."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtest.comparison.exchange import Setup
from loadtest.comparison.report_page.page import page
from loadtest.comparison.report_page.text import report_text
from loadtest.comparison.report_page.writing import read_baseline, slimmed, write_report
from loadtest.comparison.results import Results, Turn, WorkloadResult, decode
from tests.loadtest.some_results import HOSTILE, some_results

SECTIONS = ("timeline", "throughput", "memory", "bars", "distributions", "evaluated", "figures")
UNCLOSED = ("meta", "br")
ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in UNCLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "srcset", "href", "action", "data"):
                self.references.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)
            elif name == "style":
                self.styles.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.styles if self.open and self.open[-1] == "style" else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def results() -> Results:
    return some_results()


@pytest.fixture(scope="module")
def written(results: Results) -> str:
    return page(results)


@pytest.fixture(scope="module")
def shown(written: str) -> Page:
    return Page(written)


def test_every_section_is_there_and_closed(shown: Page) -> None:
    assert {*SECTIONS, "failures", "how"} <= {*shown.ids}
    assert shown.open == []
    assert "Not measured." not in shown.text


def test_every_picture_is_drawn(shown: Page) -> None:
    n_workloads = 5
    assert shown.tags.count("svg") == 4 + n_workloads


def test_no_two_elements_have_the_same_id(shown: Page) -> None:
    assert len(shown.ids) == len({*shown.ids})


def test_nothing_is_fetched_and_nothing_runs(shown: Page, written: str) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {*shown.tags}
    assert shown.handlers == []
    assert all(reference.startswith("#") for reference in shown.references)
    assert {reference[1:] for reference in shown.references} <= {*shown.ids}
    assert not any("@import" in style or "http" in style for style in shown.styles)
    assert "http" not in written


def test_a_drawing_has_no_colour_but_those_of_the_page(written: str) -> None:
    assert not re.search(r"#0a0[bc][0-9a-f]{2}", written)
    used = {*re.findall(r"var\((--[a-z0-9-]+)\)", written)}
    assert used <= {*re.findall(r"(--[a-z0-9-]+):", written)}


def test_what_a_system_says_is_shown_as_it_is(shown: Page) -> None:
    assert HOSTILE in shown.text
    assert "A Processor <9>" in shown.text


def test_names_can_do_nothing_to_drawings() -> None:
    name = "<b>$a_b$</b>"
    renamed = some_results()
    for workload in renamed.workloads:
        for turn in workload.turns:
            turn.system = turn.system.replace("llama-server", name)
        workload.summaries = {
            each.replace("llama-server", name): of_one
            for each, of_one in workload.summaries.items()
        }
    renamed.systems = [
        replace(each, name=each.name.replace("llama-server", name)) for each in renamed.systems
    ]
    renamed.workloads = renamed.workloads[2:4]
    shown = Page(page(renamed))
    assert "b" not in shown.tags
    assert shown.text.count(name) > 5


def test_bars_are_shown_with_their_ratios_and_outcomes(shown: Page) -> None:
    assert "1 of 2 bars met, 1 missed" in shown.text
    assert "1.07" in shown.words


def test_the_command_and_those_of_the_systems_are_shown(shown: Page) -> None:
    assert "python -m loadtest compare --rounds 2" in shown.words
    assert "llama-server -c 1" in shown.words


def test_a_page_of_nothing_says_so() -> None:
    nothing = some_results()
    nothing.workloads, nothing.verdicts, nothing.systems = [], [], []
    shown = Page(page(nothing))
    assert {*SECTIONS, "failures", "how"} <= {*shown.ids}
    assert shown.tags.count("svg") == 0
    assert shown.text.count("Not measured.") == 5


def test_a_workload_whose_turns_all_failed_is_told(results: Results) -> None:
    setup = Setup(model=Path("m"), n_slots=1, n_ctx=64)
    turns = [Turn(system="ours", n_round=n, error=HOSTILE) for n in range(2)]
    names = ("long-behind-short", "steady-1")
    failed = [WorkloadResult(name=n, about="", setup=setup, turns=turns) for n in names]
    shown = Page(page(replace(results, workloads=failed)))
    assert shown.text.count(HOSTILE) == 5  # one of a system, two rounds of two workloads
    assert "ours, steady-1, round 1" in shown.text


def test_a_system_that_is_absent_is_told_once_and_a_workload_with_its_reason() -> None:
    told = some_results()
    turn = Turn(system="python-server", n_round=0, error="absent in this turn", is_absent=True)
    told.workloads[0].turns.append(turn)
    told.workloads[1].error = "needs a projector"
    text = report_text(told)
    assert "absent in this turn" not in text
    assert "steady-4: needs a projector" in text


def test_a_request_that_failed_is_told_with_its_error() -> None:
    told = some_results()
    exchange = told.workloads[0].turns[0].exchanges[0]
    exchange.ended, exchange.error = "failed", HOSTILE
    assert "round 0: requests that failed: 1" in report_text(told)


def test_the_table_can_do_nothing_to_a_terminal(results: Results) -> None:
    text = report_text(results)
    assert "\x1b" not in text
    assert "[bold]" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert any("steady-16" in row and "1.07" in row and "met" in row for row in rows)


def test_a_baseline_has_the_figures_and_not_the_requests(results: Results, tmp_path: Path) -> None:
    write_report(replace(results, workloads=results.workloads[-1:]), tmp_path)
    baseline = read_baseline(tmp_path / "baseline.json")
    report = decode((tmp_path / "report.json").read_bytes())
    assert baseline == slimmed(report)
    assert baseline.workloads[0].summaries == results.workloads[-1].summaries
    assert not any(turn.exchanges for turn in baseline.workloads[0].turns)
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_changes_since_a_baseline_are_shown_beside_the_figures(results: Results) -> None:
    before = some_results()
    spread = before.workloads[0].summaries["ours"]["tokens_per_s"]
    before.workloads[0].summaries["ours"]["tokens_per_s"] = replace(
        spread, median=spread.median / 2
    )
    text = report_text(results, before)
    assert "(+100.0%)" in text
    assert "(+0.0%)" in text


def test_what_is_no_baseline_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("{}")
    command = [sys.executable, "-m", "loadtest", "compare", f"--baseline={path}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 64
    assert "no baseline" in done.stderr
