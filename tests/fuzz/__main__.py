"""Fuzzes each target for its share of the time: `python -m tests.fuzz --seconds 600`.

Inputs that fail are put into the corpus, where the tests find them.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.minimise import replace_corpus, smallest_cover
from tests.fuzz.targets import TARGETS, Target

MAX_INPUT_S = 120  # a hang; the slowest inputs take a second
SHARES = {"live": 3}  # the others have one: they run a hundred times as fast

_PROGRESS = re.compile(r"^#\d+\s.*cov: (?P<cov>\d+) ft: (?P<ft>\d+)", re.M)
_FINAL = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.M)


def main() -> int:
    """Run the targets one after the other; return how many have failed."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all, if none")
    options.add_argument("--seconds", type=int, default=600, help="for all of them together")
    options.add_argument("--keep", action="store_true", help="what is found, in the corpus")
    given = options.parse_args()
    names = given.targets or list(TARGETS)
    n_shares = sum(SHARES.get(name, 1) for name in names)
    n_failed = 0
    for name in names:
        seconds = max(1, given.seconds * SHARES.get(name, 1) // n_shares)
        n_failed += not fuzz(TARGETS[name], seconds, keeps=given.keep)
    return n_failed


def fuzz(target: Target, seconds: int, *, keeps: bool) -> bool:
    """Fuzz one target, and say how far it came; return whether nothing failed."""
    with TemporaryDirectory() as folder:  # for all that the process leaves behind: it is not asked
        found = Path(folder, "found")
        found.mkdir()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz.under_atheris", target.name),
                *(str(found), str(target.folder)),
                f"-max_total_time={seconds}",
                f"-max_len={target.max_bytes}",
                f"-timeout={MAX_INPUT_S}",
                f"-report_slow_units={MAX_INPUT_S}",
                f"-artifact_prefix={target.folder}/",
                "-print_final_stats=1",
            ],
            env={**os.environ, "TMPDIR": folder},
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        report = done.stderr
        n_runs = _FINAL.findall(report) or ["?"]
        seen = _PROGRESS.findall(report) or [("?", "?")]
        print(
            f"{target.name}: {n_runs[-1]} executions in {seconds} s,"
            f" coverage {seen[-1][0]} edges, {seen[-1][1]} features,"
            f" {len(list(found.iterdir()))} new inputs"
        )
        if done.returncode:
            print(report[-8000:])
        if keeps and not done.returncode:
            inputs = [path.read_bytes() for path in (*target.corpus, *found.iterdir())]
            replace_corpus(target, smallest_cover(target, inputs))
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
