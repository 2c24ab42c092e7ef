"""Settings out of a file, and what is wrong with one."""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import settings as limited
from hypothesis import strategies as st

from runnerd.commands.serve_settings import kinds
from runnerd.commands.settings_file import MAX_BYTES, read_settings_file
from runnerd.errors import ConfigError
from runnerd.log import EventLogger
from runnerd.peers import Access
from tests.settings import settings_of, source_of

MINIMAL = 'model = "layers=0"\nengine = "reference"\nsocket = "/socket"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.toml"


# --- what a file may say -----------------------------------------------------------------------


def test_a_file_alone_is_enough(file: Path) -> None:
    file.write_text(MINIMAL)
    config = settings_of("--config", str(file)).config
    assert (config.engine.model, config.engine.engine) == ("layers=0", "reference")
    assert config == settings_of("layers=0", "--engine=reference", "--socket=/socket").config


def test_the_command_line_wins_also_where_it_says_the_default(file: Path) -> None:
    file.write_text(f'{MINIMAL}slots = 9\nmax-queue = 9\nlora = ["a=/b"]\nswa-full = true\n')
    config = settings_of("layers=1", f"--config={file}", "--slots=4", "--lora=c=/d").config
    assert (config.engine.model, config.engine.n_slots) == ("layers=1", 4)
    assert (config.max_queue, config.engine.swa_full) == (9, True)
    assert config.engine.adapters == (("c", "/d"),)


def test_keys_may_have_dashes_or_underscores(file: Path) -> None:
    file.write_text(f"{MINIMAL}max_queue = 7\nmax-connections = 8\nlog_level = 'debug'\n")
    settings = settings_of("--config", str(file))
    assert (settings.config.max_queue, settings.config.max_connections) == (7, 8)
    assert settings.log_level == "debug"


def test_a_whole_number_will_do_where_any_number_is_wanted(file: Path) -> None:
    file.write_text(f"{MINIMAL}drain = 5\n")
    drain_s = settings_of("--config", str(file)).config.drain_s
    assert (drain_s, type(drain_s)) == (5.0, float)


def test_numbers_among_names_need_no_quotes(file: Path) -> None:
    file.write_text(f'{MINIMAL}gpu-layers = 0\nallow-users = ["root", 1234]\nallow-groups = [5]\n')
    config = settings_of("--config", str(file)).config
    assert config.engine.n_gpu_layers == 0
    assert config.access == Access(frozenset({0, 1234}), frozenset({5}))


def test_relative_paths_begin_at_the_folder_of_the_file(file: Path) -> None:
    file.write_text(
        'model = "m.gguf"\nmmproj = "p.gguf"\nsocket = "s"\nlora = ["a=b.gguf", "c=/d=e"]\n'
    )
    config, folder = settings_of("--config", str(file)).config, str(file.parent)
    assert config.engine.model == f"{folder}/m.gguf"
    assert config.engine.mmproj == f"{folder}/p.gguf"
    assert config.engine.adapters == (("a", f"{folder}/b.gguf"), ("c", "/d=e"))
    assert config.socket_path == Path(folder, "s")


def test_relative_paths_of_the_command_line_stay_as_they_are(file: Path) -> None:
    file.write_text('model = "m.gguf"\nsocket = "s"\n')
    config = settings_of("n.gguf", f"--config={file}", "--socket=t", "--lora=a=b").config
    assert config.engine.model == "n.gguf"
    assert config.engine.adapters == (("a", "b"),)
    assert config.socket_path == Path("t")


def test_the_reference_engine_has_no_files(file: Path) -> None:
    file.write_text('model = "layers=0"\nlora = ["a=b"]\nsocket = "/s"\n')
    engine = settings_of("--config", str(file), "--engine=reference").config.engine
    assert (engine.model, engine.adapters) == ("layers=0", (("a", "b"),))


# --- what is wrong with one --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots = 'many'", 'slots = "many" is not a whole number'),
        ("slots = true", "slots = true is not a whole number"),
        ("slots = 4.0", "slots = 4.0 is not a whole number"),
        ("slots = 2026-11-30", 'slots = "2026-11-30" is not a whole number'),
        ("slots = [1]", r"slots = \[1\] is not a whole number"),
        ("slots.a = 1", 'slots = {"a": 1} is not a whole number'),
        (f"slots = {2**63}", "slots has more than 64 bits"),
        (f"slots = {'9' * 5000}", "Exceeds the limit"),
        ("drain = true", "drain = true is not a number"),
        ("drain = 'x'", 'drain = "x" is not a number'),
        ("swa-full = 1", "swa-full = 1 is not true or false"),
        ("kv = 'no'", 'kv = "no" is not one of auto, split, unified'),
        ("model = 1", "model = 1 is not a string"),
        ("socket = []", r"socket = \[\] is not a string"),
        ("lora = 'a=b'", 'lora = "a=b" is not a list of strings'),
        ("lora = [1]", r"lora = \[1\] is not a list of strings"),
        ("gpu-layers = 1.5", "gpu-layers = 1.5 is not a string"),
        ("socket = \"a\\u0000b\"", "socket has a NUL in it"),
        ("lora = [\"a=\\u0000b\"]", "lora has a NUL in it"),
        ("max-queeu = 1", "there is no setting max-queeu; there is max-queue"),
        ("max_conections = 1", "there is no setting max_conections; there is max-connections"),
        ("zzz = 1", "there is no setting zzz$"),
        ("config = 'x'", "there is no setting config"),
        ("fd = 3", "there is no setting fd"),
        ("parent-fd = 3", "there is no setting parent-fd"),
        ("\"a\\nb\\u001b\" = 1", "there is no setting a b.$"),
        ("max-queue = 1\nmax_queue = 1", "max-queue is given twice"),
        ("max-queue = 1\nmax-queue = 1", "Cannot overwrite a value .at "),
        ("[serve]\nslots = 1", "there is no setting serve, and settings stand outside of tables"),
        ("[a]\n[a]", "Cannot declare .* twice .at line 2"),
        ("slots = ", "Invalid value .at "),
        ("slots 4", "Expected '=' after a key"),
        (f"lora = {'[' * 10000}", "values are nested too deeply"),
        (f"slots = '{'x' * 9999}'", 'slots = "x{62}. is not a whole number'),
    ],
)  # fmt: skip
def test_what_no_option_could_be_is_named_with_the_file(text: str, words: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {words}") as caught:
        read_settings_file(file, kinds())
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots = 0", "slots 0 is not between 1 and"),
        ("drain = nan", "drain nan is not between"),
        ("drain = -inf", "drain -inf is not between"),
        ("batch = 2", "batch 2 is less than slots 4"),
        ("outbox-kib = 8161", "outbox-kib 8161 is not between 0.001 and 8160"),
        ("image-max-mpx = 1e308", "--image-max-mpx 1e.308 is no number of pixels"),
        ("image-store-mib = 9223372036854775807", "image-store-mib 9223372036854775807 is not"),
        ("gpu-layers = 'x'", "--gpu-layers x is neither a number nor auto"),
        ("lora = ['a']", "--lora a is not NAME=PATH"),
        ("max-requests = 0", "max-requests 0 is not"),
        ("load-timeout = 0", "load-timeout 0.0 is not"),
        ("allow-users = 1", "allow-users = 1 is not a list"),
        ("allow-users = ['no such']", "allow-users 'no such' is not known"),
        ("allow-groups = [65534]", "allow-groups 65534 is id 65534, which stands for all"),
    ],
)
def test_what_is_out_of_range_is_named_with_the_file(text: str, words: str, file: Path) -> None:
    file.write_text(MINIMAL + text)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {words}"):
        settings_of("--config", str(file))


def test_where_options_were_given_they_may_be_what_is_wrong(file: Path) -> None:
    file.write_text(f"{MINIMAL}batch = 8")
    words = f"^{re.escape(str(file))} and the command line: batch 8 is less than slots 9"
    with pytest.raises(ConfigError, match=words):
        settings_of("--config", str(file), "--slots=9")


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_settings_file(file, kinds())
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_settings_file(file.parent, kinds())
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_settings_file(file, kinds())


def test_a_file_that_is_too_large_or_not_utf_8_is_named(file: Path) -> None:
    file.write_bytes(b"#" * MAX_BYTES)
    assert read_settings_file(file, kinds()) == {}
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=f"has more than {MAX_BYTES} bytes"):
        read_settings_file(file, kinds())
    file.write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        read_settings_file(file, kinds())


@given(st.binary(max_size=200) | st.text("[]{}=.'\"\\\n #a1-,", max_size=60).map(str.encode))
def test_no_file_is_too_strange_to_be_refused(content: bytes) -> None:
    path = Path(f"/proc/self/fd/{(fd := os.memfd_create('settings'))}")
    try:
        os.write(fd, content)
        said = str(read_settings_file(path, kinds()))
    except ConfigError as err:
        said = str(err)
    finally:
        os.close(fd)
    assert said == "{}" or said.startswith(f"{path}: ")
    assert said.isprintable()


# --- read again --------------------------------------------------------------------------------


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    source = source_of("layers=0", "--engine=reference", "--socket=s")
    assert source.reloader(source.settings()) is None


def test_what_is_read_again_stands_below_the_same_command_line(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLogger, "threshold", logging.INFO)  # as it is to be afterwards
    file.write_text(f"{MINIMAL}slots = 2\nmax-queue = 2\n")
    source = source_of(f"--config={file}", "--max-queue=3")
    start = source.settings()
    reload = source.reloader(start)
    assert reload is not None
    assert reload() == start.config
    file.write_text(f"{MINIMAL}max-queue = 4\ndrain = 5\nlog-level = 'error'\n")
    config = reload()
    assert (config.max_queue, config.drain_s, config.engine.n_slots) == (3, 5.0, 4)
    assert EventLogger.threshold == logging.ERROR


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("socket = '/s'\nlog-level = 'debug'", "model is missing, and so it is on the command"),
        (f"{MINIMAL}slots = 0\nlog-level = 'debug'", "slots 0 is not"),
        ("model = ", "Invalid value"),
    ],
)
def test_a_file_that_is_wrong_by_now_changes_nothing(
    text: str, words: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLogger, "threshold", logging.INFO)
    file.write_text(MINIMAL)
    source = source_of(f"--config={file}")
    reload = source.reloader(source.settings())
    assert reload is not None
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {words}"):
        reload()
    assert EventLogger.threshold == logging.INFO


# --- the same, whichever way it is said --------------------------------------------------------

SPECIAL: Mapping[str, st.SearchStrategy[object]] = {
    "slots": st.integers(1, 8),
    "ctx_total": st.just(0),
    "threads": st.integers(0, 4),
    "model": st.sampled_from(["layers=0", "layers=1,dim=8"]),
    "engine": st.just("reference"),
    "socket": st.from_regex(r"/[a-zA-Zäöü '\"=#-]{1,20}", fullmatch=True),
    "mmproj": st.text("abc/.", max_size=5),
    "devices": st.sampled_from(["all", "CUDA0", "0000:01:00.0,cpu"]),
    "tensor_split": st.sampled_from(["auto", "1,2.5"]),
    "gpu_layers": st.sampled_from(["auto", "0", "33"]),
    "lora": st.lists(st.from_regex(r"[a-z]{1,9}=/[ -~]{1,9}", fullmatch=True), max_size=3),
    "allow_users": st.lists(st.sampled_from(["root", "daemon", "1000"])),
    "allow_groups": st.lists(st.sampled_from(["root", "5", "4294967294"])),
}


def values_of(name: str, kind: object) -> st.SearchStrategy[object]:
    if name in SPECIAL:
        return SPECIAL[name]
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(8, 600)
    if kind is float:
        return st.floats(1, 1000)
    return st.sampled_from(get_args(kind))


OPTIONS = st.fixed_dictionaries(
    {name: SPECIAL[name] for name in ("model", "engine", "socket")},
    optional={
        name: values_of(name, kind)
        for name, kind in kinds().items()
        if name not in ("model", "engine", "socket")
    },
)


def as_toml(options: Mapping[str, object]) -> str:
    """A string in JSON's escapes is one in TOML, too; so are numbers, truths and lists."""
    return "".join(
        f"{name} = {json.dumps(value).replace('Infinity', 'inf')}\n"
        for name, value in options.items()
    )


def as_arguments(options: Mapping[str, object]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [option] if value else []
        elif isinstance(value, list):
            arguments += [f"{option}={each}" for each in value]
        elif name != "model":
            arguments.append(f"{option}={value}")
    return [*arguments, "--", str(options["model"])]


def outcome(*arguments: str) -> object:
    try:
        return settings_of(*arguments)
    except Exception as err:  # to be compared, whatever it is
        return str(err).rpartition(": ")[2]


@limited(max_examples=40)
@given(options=OPTIONS)
def test_a_file_says_the_same_as_the_command_line(options: dict[str, object]) -> None:
    fd = os.memfd_create("settings")
    try:
        os.write(fd, as_toml(options).encode())
        assert outcome(f"--config=/proc/self/fd/{fd}") == outcome(*as_arguments(options))
    finally:
        os.close(fd)
