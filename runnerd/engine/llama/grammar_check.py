"""What becomes of a grammar before llama.cpp sees it: it is refused, or rewritten to be quick."""

from contextlib import suppress
from dataclasses import dataclass

from runnerd.engine.llama.grammar_choices import is_decided_by_characters
from runnerd.engine.llama.grammar_factoring import Bodies, factored
from runnerd.engine.llama.grammar_places import most_ways
from runnerd.engine.llama.grammar_rules import Order, Rules, check_rules
from runnerd.engine.llama.grammar_text import MAX_BYTES, Reader
from runnerd.errors import BadGrammar

MOST_BEGINS = 3000  # of a rule: llama.cpp compares each with each, which takes 0.2 s


@dataclass(frozen=True, slots=True)
class Checked:
    """A grammar that llama.cpp will compile, soon and without harm.

    `n_ways` is how many ways on there can be behind a character of a text; 1: the next
    character decides, wherever one is.
    """

    text: str
    n_ways: int


def check_grammar(text: str, start: str) -> Checked:
    """Make a grammar harmless.

    Raises:
        BadGrammar: it is malformed, too large or too ambiguous, and where.
    """
    bodies, rules, order = _read(text, start)
    if not is_decided_by_characters(rules, order.empty):
        with suppress(BadGrammar):  # it becomes too large
            simpler = factored(bodies, start)
            (_, rules, order), text = _read(simpler, start), simpler
    if order.most_begins > MOST_BEGINS:
        raise BadGrammar(
            f"a rule that can begin in {order.most_begins} ways, the limit is {MOST_BEGINS}"
        )
    if is_decided_by_characters(rules, order.empty):
        return Checked(text, 1)
    return Checked(text, most_ways(rules, order))


def _read(text: str, start: str) -> tuple[Bodies, Rules, Order]:
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise BadGrammar(f"the grammar has half a character at {err.start}") from err
    if n_bytes > MAX_BYTES:
        raise BadGrammar(f"a grammar of {n_bytes} bytes, the limit is {MAX_BYTES}")
    if "\0" in text:
        raise BadGrammar(f"the grammar has a NUL at {text.index(chr(0))}")
    reader = Reader(text)
    rules = reader.rules()
    return reader.bodies, rules, check_rules(rules, start)
