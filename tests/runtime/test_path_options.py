"""Options that name files."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.models import OptionInfo

from runnerd.cli import app


def path_options() -> dict[str, OptionInfo]:
    """Return the options of all commands that are made into paths."""
    found: dict[str, OptionInfo] = {}
    for command in app.registered_commands:
        assert command.callback is not None
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kinds = str(get_args(hint)[:1])
            if Path.__name__ in kinds:
                (option,) = get_args(hint)[1:]
                found[f"{command.callback.__name__} {name}"] = option
    return found


def test_some_options_name_files() -> None:
    assert {"serve config_file", "generate image", "top socket"} <= path_options().keys()


@pytest.mark.parametrize("name", path_options())
def test_the_parser_leaves_it_to_the_command_to_say_why_a_file_cannot_be_read(name: str) -> None:
    assert not path_options()[name].readable
