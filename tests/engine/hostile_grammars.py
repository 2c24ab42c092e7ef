"""Hostile grammars, and how long the worst token takes: run in a process that can be ended.

`python -m tests.engine.hostile_grammars` writes one line of JSON for each grammar: its text, and
the CPU seconds of its slowest token (null: it was refused).
"""

import json
import random
import sys
from time import thread_time

import numpy as np

from runnerd.core.batch import Sampling
from runnerd.errors import BadGrammar
from tests.engine.llama_vocabulary import Words, loaded_words

N_TOKENS = 12  # as an ambiguity grows with the text
LETTERS = ("=", " ", "-")  # of which this vocabulary has long tokens
WELL_KNOWN = (
    'root ::= ("="*)* "x"',
    'root ::= (("="*)*)* "x"',
    'root ::= ("="? "="?)* "x"',
    'root ::= ("="? "="? "="?)+ "x"',
    'root ::= ("="+)+ "x"',
    'root ::= ((("="+)+)+)+ "x"',
    'root ::= ("=" | "==" | "===")+ "x"',
    'root ::= ("=" | "=" | "=")* "x"',
    'root ::= ("="* "=")* "x"',
    'root ::= "="* "="* "="* "="* "="* "x"',
    'root ::= s "x"\ns ::= "=" | "=" s | "=" s s',
    'root ::= s "x"\ns ::= "=" (s t | t s | "=")\nt ::= "=" (s | t t | "=")',
    'root ::= s "x"\ns ::= "=" s "=" | "=" s | "="',
    'root ::= s "x"\ns ::= "=" (s | t | u)?\nt ::= "=" (s | t | u)?\nu ::= "=" (s | t | u)?',
    'root ::= s "x"\ns ::= "=" (s t u | t u s | u s t | "=")\nt ::= "=" s | "="\nu ::= "=" t | "="',
    'root ::= ([=] | "==" [=-]?){1,40} "x"',
    'root ::= (.* "=")* "x"',
    'root ::= (.+ .+)+ "x"',
    'root ::= ("=" "="? "="? "="?){0,300} "x"',
    'root ::= (("="{1,3}){1,3}){1,30} "x"',
    'root ::= "-" | ' + " | ".join(f'"-" root "b{letter}"' for letter in "abcdefghijklmnopqrst"),
    'root ::= s "x"\ns ::= "=" | ' + " | ".join(f"[=] s [{a}-z]" for a in "abc"),
    'root ::= s "x"\ns ::= "-" s [a-y] | [-] s [b-z] | "=" ([a-z] | '
    + " | ".join(f'"{a}{b}"' for a in "ab" for b in "cdefghijklmnopqrstuvwxyz")
    + ")",
    'root ::= r "x"\nr ::= ((("--" "-"))+){1,3} | (("-" r)*)?',
)


def hostile(rng: random.Random) -> str:
    """Make a grammar of nested repetitions, choices and recursion over one letter."""
    letter = rng.choice(LETTERS)
    names = [f"r{n}" for n in range(rng.randrange(1, 4))]

    def part(depth: int) -> str:
        match rng.randrange(7 if depth else 2):
            case 0:
                return f'"{letter * rng.choice((1, 1, 2))}"'
            case 1:
                return f'"{letter}" {rng.choice(names)}'
            case 2:
                return f"({part(depth - 1)} | {part(depth - 1)} | {part(depth - 1)})"
            case 3:
                return f"({part(depth - 1)} {part(depth - 1)})"
        return f"({part(depth - 1)}){rng.choice(('*', '+', '?', '{1,3}', '{0,9}'))}"

    rules = [f"{name} ::= | {part(3)} | {part(2)}" for name in names]
    return "\n".join([f'root ::= ({part(3)} {names[0]}) "x"', *rules])


def slowest(words: Words, grammar: str) -> float | None:
    """Return the CPU seconds of the slowest of a few tokens; None: the grammar is refused."""
    try:
        constraint = words.constraint(grammar)
    except BadGrammar:
        return None
    worst = 0.0
    words.samplers.open(0, Sampling(temperature=1.0, seed=1, constraint=constraint), ())
    row = np.zeros(words.vocabulary.n_tokens, np.float32)
    for token in range(words.vocabulary.n_tokens):
        n_letters = sum(map(words.vocabulary.token_bytes(token).count, b"=- "))
        row[token] = min(n_letters, 20) - (30.0 if words.vocabulary.is_end(token) else 0.0)
    row += np.random.default_rng(1).standard_normal(row.size, np.float32)
    for _ in range(N_TOKENS):
        began_at = thread_time()
        sampled = words.pick(0, row)
        worst = max(worst, thread_time() - began_at)
        if not isinstance(sampled, int) or words.vocabulary.is_end(sampled):
            break
    words.samplers.close(0)
    return worst


def main() -> None:
    """Try the well-known ones, and as many others as make 100."""
    rng = random.Random(int(sys.argv[1]))
    others = [hostile(rng) for _ in range(100 - len(WELL_KNOWN))]
    with loaded_words() as words:
        slowest(words, 'root ::= "x"')  # which makes what all share
        for grammar in (*WELL_KNOWN, *others):
            sys.stdout.write(json.dumps((grammar, slowest(words, grammar))) + "\n")


if __name__ == "__main__":
    main()
