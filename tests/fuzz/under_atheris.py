"""One target under atheris, in a process of its own: `python -m tests.fuzz.under_atheris`.

The first argument names the target, the others are libFuzzer's.
"""

import sys

import atheris


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    with atheris.instrument_imports(include=["runnerd", "runnerd_protocol"]):
        from tests.fuzz.targets import TARGETS  # instrumented as they are imported
    target = TARGETS[sys.argv[1]]
    with target.open() as run:
        atheris.Setup(
            [sys.argv[0], *sys.argv[2:]],
            lambda data: run(bytes(data)),
            custom_mutator=target.mutate,
            custom_crossover=target.cross,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
