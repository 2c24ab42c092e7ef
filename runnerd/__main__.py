"""`python -m runnerd`: the same as the `runnerd` command."""

from runnerd.cli import main

if __name__ == "__main__":
    main()
