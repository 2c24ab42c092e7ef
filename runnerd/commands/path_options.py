"""Options that name files.

Whether we may read one is left to whoever opens it: it says why not, with an exit status of ours.
"""

import typer


def socket_option(what_for: str) -> object:
    """Return the option `--socket` of a command that looks for a daemon, or is one."""
    return typer.Option("--socket", readable=False, help=what_for, metavar="PATH")


def file_option(what_for: str) -> object:
    """Return the option, with its parameter's name, of a file that a command reads."""
    return typer.Option(readable=False, help=what_for, metavar="FILE")
