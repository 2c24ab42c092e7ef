"""A file with the options of `serve`: TOML, a key for each by its name.

Only what can be seen without the others is checked here: keys and types. Relative paths in the
file are relative to its folder.
"""

import json
import os
import stat
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Literal, TypeGuard, get_args, get_origin

from runnerd.commands.serve_settings import Kinds, Value
from runnerd.errors import ConfigError
from runnerd.harmless import harmless_line
from runnerd.models import PACKAGES

MAX_BYTES = 64 * 2**10  # many times what there is to say
MAX_VALUE_CHARS = 64  # of a value at fault that are shown
MAX_INTEGER = 2**63 - 1  # as TOML has it; Python reads more

# Texts that are often a number, which nobody thinks of quoting.
NUMBERS_TOO = {"gpu_layers", "allow_users", "allow_groups"}


def read_settings_file(path: Path, kinds: Kinds) -> dict[str, Value]:
    """Return the options that a file gives, by the names of their parameters.

    Raises:
        ConfigError: the file cannot be read, or says what no option could be.
    """
    settings: dict[str, Value] = {}
    for key, value in _parsed(path).items():
        name = key.replace("-", "_")
        if name not in kinds:
            raise ConfigError(f"{path}: {_unknown(key, value, kinds)}")
        if name in settings:
            raise ConfigError(f"{path}: {_option(name)} is given twice, with - and with _")
        settings[name] = _checked(path, key, value, kinds[name], may_be_number=name in NUMBERS_TOO)
    return settings


def anchored(name: str, value: Value, folder: Path, *, is_llama: bool) -> Value:
    """Return the value of a file's option; a relative path begins at the file's folder.

    The reference engine's models are no files.
    """
    match name, value:
        case ("socket", str()):
            return _path(value, folder)
        case ("model" | "mmproj", str()) if is_llama and value not in PACKAGES:
            return _path(value, folder)
        case ("lora", list()) if is_llama:
            parts = [each.partition("=") for each in value]
            return [f"{of}{sign}{_path(path, folder)}" for of, sign, path in parts]
    return value


def _path(text: str, folder: Path) -> str:
    return str(folder / text) if text else ""


# --- the file ------------------------------------------------------------------------------


def _parsed(path: Path) -> dict[str, object]:
    try:
        return dict(tomllib.loads(_content(path).decode()))
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: byte {err.start} is not UTF-8") from err
    except ValueError as err:  # besides its own, that of a number with thousands of digits
        raise ConfigError(f"{path}: {harmless_line(str(err))}") from err
    except RecursionError as err:
        raise ConfigError(f"{path}: values are nested too deeply") from err


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: is not a regular file")
            content = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}") from err
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_BYTES} bytes")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would have us wait for who writes to it


# --- keys ----------------------------------------------------------------------------------


def _option(name: str) -> str:
    return name.replace("_", "-")


def _unknown(key: str, value: object, kinds: Kinds) -> str:
    what = harmless_line(key, MAX_VALUE_CHARS)
    if isinstance(value, dict):
        return f"there is no setting {what}, and settings stand outside of tables"
    names = [_option(name) for name in kinds]
    near = get_close_matches(_option(key[:MAX_VALUE_CHARS]), names, n=1)
    return f"there is no setting {what}{f'; there is {near[0]}' if near else ''}"


# --- values --------------------------------------------------------------------------------


def _checked(path: Path, key: str, value: object, kind: object, *, may_be_number: bool) -> Value:
    as_it_is = value
    if may_be_number:
        value = [_text(each) for each in value] if isinstance(value, list) else _text(value)
    if not _fits(value, kind):
        as_written = json.dumps(as_it_is, ensure_ascii=False, default=str)  # or nearly so
        shown = harmless_line(as_written, MAX_VALUE_CHARS)
        raise ConfigError(f"{path}: {key} = {shown} is not {_words(kind)}")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ConfigError(f"{path}: {key} has more than 64 bits")
    if any("\0" in text for text in _texts(value)):
        raise ConfigError(f"{path}: {key} has a NUL in it")
    return float(value) if float in _bare(kind) and isinstance(value, int) else value


def _text(value: object) -> object:
    return str(value) if type(value) is int and abs(value) <= MAX_INTEGER else value


def _texts(value: Value) -> Iterable[str]:
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, str) else []


def _bare(kind: object) -> tuple[object, ...]:
    """Return the types that an option may have; None is how one is not given at all."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return tuple(each for each in kinds if each is not type(None))


def _fits(value: object, kind: object) -> TypeGuard[Value]:
    (bare,) = _bare(kind)
    if bare in (bool, int):
        return type(value) is bare
    if bare is float:
        return type(value) in (int, float)
    if get_origin(bare) is Literal:
        return isinstance(value, str) and value in get_args(bare)
    if get_origin(bare) is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _words(kind: object) -> str:
    (bare,) = _bare(kind)
    if bare is bool:
        return "true or false"
    if bare is int:
        return "a whole number"
    if bare is float:
        return "a number"
    if get_origin(bare) is Literal:
        return f"one of {', '.join(get_args(bare))}"
    return "a list of strings" if get_origin(bare) is list else "a string"
