"""`python -m tests.soak [WORLD] [--seed N] [--requests N]`: run rounds, or one of them again."""

import argparse
import sys

from tests.soak.running import ROUND, run_round, run_rounds, table
from tests.soak.worlds import WORLDS

parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
parser.add_argument("world", nargs="?", choices=WORLDS, help="one round in this world; else all")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--requests", type=int, default=0)
args = parser.parse_args()
if args.world:
    counts = run_round(WORLDS[args.world], args.seed, args.requests or ROUND)
else:
    counts = run_rounds(args.requests or 50_000, args.seed)
sys.stdout.write(table(counts) + "\n")
