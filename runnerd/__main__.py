"""`python -m runnerd`: the same as the `runnerd` command, and sooner there."""

import gc


def main() -> None:
    """Run the command that the arguments name; never returns."""
    gc.disable()  # of what is imported nothing is garbage, and to look for it takes 25 ms
    from runnerd.cli import main as run

    gc.freeze()  # nor will it ever be
    gc.enable()
    run()


if __name__ == "__main__":
    main()
