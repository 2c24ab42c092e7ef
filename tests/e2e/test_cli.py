import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd import __version__
from tests.processes import COMMAND, PATIENCE_S, Family, needs_model, run, running, serving

REFERENCE = "--engine=reference"


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("cli") / "socket"
    with serving(path):
        yield str(path)


def test_the_version_is_told() -> None:
    ended = run("--version")
    assert (ended.code, ended.out) == (0, f"runnerd {__version__}\n")


# --- what is wrong is said, with a status out of sysexits.h ------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--bogus"], 64, "No such option: --bogus"),
        (["serve"], 64, "Missing argument"),
        (["serve", "", REFERENCE, "--slots=many"], 64, "--slots"),
        (["serve", "", REFERENCE], 78, "nothing to serve on"),
        (["serve", "", REFERENCE, "--socket=s", "--slots=0"], 78, "slots 0 is not between"),
        (["serve", "", REFERENCE, "--fd=0"], 78, "fd 0 is not a socket"),
        (["serve", "", REFERENCE, "--fd=99"], 78, "fd 99: Bad file descriptor"),
        (["generate", "hi"], 64, "give either --socket or --model"),
        (["generate", "hi", "--socket=s", "--system=x"], 64, "--system goes with --chat"),
        (["generate", "hi", "--socket=s", "--grammar=/no/such"], 66, "cannot read /no/such: No"),
        (["generate", "hi", "--socket=s", "--grammar=a", "--json-schema=b"], 64, "give either"),
        (["generate", "hi", "--socket=s", "--adapter=a=b"], 64, "the scale is no number"),
        (["generate", "hi", "--socket=s", "--n=0"], 64, "--n"),
        (["generate", "hi", "--socket=s", "--temperature=nan"], 64, "nan is not between 0 and 100"),
        (["generate", "hi", "--socket=s", "--timeout=0"], 64, "0 is not between 0.001 and"),
        (["generate", "hi", "--socket=s", "--lora=a=b"], 64, "--lora goes with --model"),
        (["generate", "hi", "--model=m", "--adapter=a"], 64, "--adapter needs --lora"),
        (["generate", "hi", "--socket=s", "--mmproj=p"], 64, "--mmproj goes with --model"),
        (["generate", "hi", "--socket=s", "--image=-"], 64, "--image takes a file: stdin is for"),
        (["generate", "hi", "--socket=s", "--image=/no/such"], 66, "cannot read /no/such: No"),
        (["generate", "hi", "--socket=s", "--image=/"], 66, "cannot read /: Is a directory"),
        (
            ["generate", "hi", "--socket=s", "--image=/dev/zero"],
            1,
            "/dev/zero has more than 16777216 bytes",
        ),
        (
            ["generate", "hi", "--model=images=0", REFERENCE, "--mmproj=p"],
            78,
            "with a projector, p",
        ),
        (["status", "--socket=s", "--prometheus", "--json"], 64, "--prometheus goes with neither"),
        (["serve", "", REFERENCE, "--socket=s", "--lora=a"], 64, "--lora a is not NAME=PATH"),
        (["serve", "", REFERENCE, "--socket=s", "--lora=a="], 78, "lora a has no path"),
        (["serve", "", REFERENCE, "--socket=s", "--embed-max=-1"], 78, "embed-max -1 is not"),
        (["generate", "hi", "--socket=/no/such"], 69, "nobody listens at /no/such"),
        (["status", "--socket=/no/such"], 69, "nobody listens at /no/such"),
        (["generate", "hi", "--model=fail_load=1", REFERENCE], 65, "fail_load=1"),
        (["generate", "hi", "--model=x=1", REFERENCE], 78, "'x=1' is not an option"),
    ],
)
def test_what_is_wrong_is_said_in_a_few_lines(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*arguments)
    assert ended.code == code, ended
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) <= 4
    assert not list(tmp_path.iterdir())


def test_a_refused_request_ends_with_its_code_on_stderr(socket_path: str) -> None:
    ended = run("generate", "x" * 1000, f"--socket={socket_path}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("runnerd: prompt_too_long: ")
    assert len(ended.err.splitlines()) == 1


# --- generate ----------------------------------------------------------------------------------


def test_generate_writes_the_text_and_a_newline(socket_path: str) -> None:
    ended = run("generate", "hello", f"--socket={socket_path}", "--max-tokens=9", "--temperature=0")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("\n")
    assert len(ended.out) > 1


def test_generate_reads_the_prompt_from_stdin(socket_path: str) -> None:
    options = (f"--socket={socket_path}", "--max-tokens=9", "--temperature=0")
    assert (
        run("generate", "-", *options, stdin=b"hello").out == run("generate", "hello", *options).out
    )


def test_generate_as_json_is_one_object(socket_path: str) -> None:
    options = (f"--socket={socket_path}", "--max-tokens=9", "--seed=5", "--stop=never", "--json")
    answer = json.loads(run("generate", "hello", *options).out)
    assert (answer["reason"], answer["n_generated"], answer["seed"]) == ("length", 9, 5)
    assert len(answer["text"].encode()) == answer["n_text_bytes"]
    assert answer["timings"]["total_ms"] > 0


def test_several_completions_are_told_apart(socket_path: str) -> None:
    options = (f"--socket={socket_path}", "--max-tokens=9", "--seed=5", "--n=2")
    answer = json.loads(run("generate", "hello", *options, "--json").out)
    assert [choice["seed"] for choice in answer["choices"]] == [5, 6]
    first, second = (choice["text"] for choice in answer["choices"])
    assert answer["text"] == first
    out = run("generate", "hello", *options).out.replace("\r\n", "\n")
    assert out.startswith("[1] ")
    assert "\n[2] " in out
    assert first in out
    assert second in out


def test_a_grammar_is_read_from_a_file(socket_path: str, tmp_path: Path) -> None:
    grammar = tmp_path / "grammar"
    grammar.write_text('root ::= "forced"')
    options = (f"--socket={socket_path}", f"--grammar={grammar}")
    assert run("generate", "hello", *options).out == "forced\n"
    grammar.write_text("root ::= [")
    ended = run("generate", "hello", *options)
    assert ended.code == 1
    assert ended.err.startswith("runnerd: bad_grammar: ")


def test_an_unknown_adapter_is_refused_with_the_names_that_there_are(socket_path: str) -> None:
    ended = run("generate", "hello", f"--socket={socket_path}", "--adapter=tone=0.5")
    assert ended.code == 1
    assert "adapters[0].name is tone" in ended.err


def test_a_private_daemon_loads_the_adapters_that_it_is_given(tmp_path: Path) -> None:
    options = ("--model=layers=1", REFERENCE, "--max-tokens=3", "--json")
    ended = run("generate", "hi", *options, f"--lora=tone={tmp_path}", "--adapter=tone=0.5")
    assert json.loads(ended.out)["n_generated"] == 3


def test_a_time_that_is_over_before_the_first_token_is_said(tmp_path: Path) -> None:
    path = tmp_path / "slow"
    with serving(path, "layers=0,step_ms=300"):
        ended = run("generate", "x" * 40, f"--socket={path}", "--timeout=0.05")
    assert (ended.code, ended.err) == (1, "runnerd: no token came within 0.05 s\n")


def test_no_texts_are_embedded_to_nothing(socket_path: str) -> None:
    ended = run("embed", "-", f"--socket={socket_path}")
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_a_chat_prompt_is_rendered_by_the_models_template(socket_path: str) -> None:
    options = (f"--socket={socket_path}", "--max-tokens=0", "--json")
    n_plain = json.loads(run("generate", "hello", *options).out)["n_prompt"]
    ended = run("generate", "hello", *options, "--chat", "--system=be brief")
    assert json.loads(ended.out)["n_prompt"] > n_plain + len("be brief")


def test_verbose_tells_usage_and_timings_on_stderr(socket_path: str) -> None:
    ended = run("generate", "hello", f"--socket={socket_path}", "--max-tokens=9", "-v")
    assert "generated 9, ended by length" in ended.err
    assert "TTFT" in ended.err


def test_generate_with_a_model_runs_a_daemon_of_its_own() -> None:
    ended = run("generate", "hello", "--model=layers=0", REFERENCE, "--max-tokens=9", "--json")
    assert ended.err == ""
    assert json.loads(ended.out)["n_generated"] == 9


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "hello", "--shift", "--socket={}"],
        ["status", "--watch", "--interval=0.05", "--socket={}"],
        ["demo", REFERENCE, "--model=layers=0,step_ms=5"],
    ],
)
def test_a_reader_that_has_had_enough_ends_a_command_quietly(
    arguments: list[str], socket_path: str
) -> None:
    command = [*COMMAND, *(argument.format(socket_path) for argument in arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""


def test_a_full_disk_is_named(socket_path: str) -> None:
    command = [*COMMAND, "generate", "hello", f"--socket={socket_path}", "--max-tokens=9"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 74
    assert done.stderr == b"runnerd: cannot write: No space left on device\n"


def test_a_prompt_that_no_frame_holds_is_one_line(socket_path: str) -> None:
    command = [*COMMAND, "generate", "-", f"--socket={socket_path}"]
    done = subprocess.run(command, check=False, input=b"x" * 2**24, capture_output=True)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"a frame holds 16777216" in done.stderr


def test_control_characters_do_not_reach_a_terminal(socket_path: str) -> None:
    # Byte tokens at a high temperature: hardly a text of this length is without one.
    options = ("--max-tokens=400", "--temperature=100", "--top-k=0", "--top-p=1", "--min-p=0")
    arguments = ("generate", "hello", f"--socket={socket_path}", "--seed=1", *options)
    with running(*arguments, on_terminal=True) as command:
        text = command.rest()
    assert "�" in text
    assert not any(char < " " and char not in "\r\n\t" for char in text)


@pytest.mark.llama
@needs_model
def test_the_real_model_answers_a_chat() -> None:
    question = "What is the capital of France? Answer with one word."
    options = ("--model=smollm2", "--chat", "--temperature=0", "--max-tokens=12")
    ended = run("generate", question, *options, timeout=300)
    assert ended.code == 0, ended
    assert "Paris" in ended.out


# --- status ------------------------------------------------------------------------------------


def test_status_is_a_table_for_people(socket_path: str) -> None:
    ended = run("status", f"--socket={socket_path}")
    assert ended.code == 0
    assert "ready" in ended.out
    assert "0 of 4 busy" in ended.out


def test_status_as_json_is_one_object(socket_path: str) -> None:
    status = json.loads(run("status", f"--socket={socket_path}", "--json").out)
    assert (status["state"], status["n_slots"]) == ("ready", 4)


def test_status_for_prometheus_names_each_figure_with_its_type(socket_path: str) -> None:
    ended = run("status", f"--socket={socket_path}", "--prometheus")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert "# TYPE runnerd_requests_total counter" in lines
    assert "# TYPE runnerd_slots gauge" in lines
    assert "runnerd_slots 4" in lines
    assert 'runnerd_state{state="ready"} 1' in lines
    figures = [line.split(" ")[0] for line in lines if not line.startswith("#")]
    assert len(figures) == len(set(figures))
    assert all(name.startswith("runnerd_") for name in figures)


def test_watching_as_json_is_an_object_per_line(socket_path: str) -> None:
    arguments = ("status", f"--socket={socket_path}", "--json", "--watch", "--interval=0.05")
    with running(*arguments) as command:
        command.wait_for("}\n{")
        command.interrupt()
        assert command.wait() == 130
        lines = command.rest().splitlines()
    assert all(json.loads(line)["state"] == "ready" for line in lines)


def test_watching_on_a_terminal_shows_a_table(socket_path: str) -> None:
    with running("status", f"--socket={socket_path}", "--watch", on_terminal=True) as command:
        command.wait_for("0 of 4 busy")
        command.interrupt()
        assert command.wait() == 130


def test_watching_ends_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(path) as daemon, running("status", f"--socket={path}", "--watch") as command:
        command.wait_for("ready")
        daemon.interrupt()
        assert command.wait() == 69
        assert "the daemon has stopped" in command.rest()


# --- the end -----------------------------------------------------------------------------------


def test_ctrl_c_ends_a_daemon_and_takes_its_files_away(tmp_path: Path) -> None:
    with serving(tmp_path / "socket") as daemon:
        family = Family(daemon.process.pid)
        daemon.interrupt()
        assert daemon.wait() == 0
    assert family.has_ended()
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_daemon_that_loads(tmp_path: Path) -> None:
    arguments = ("serve", "load_ms=8000", REFERENCE, f"--socket={tmp_path}/socket")
    with running(*arguments, on_terminal=True) as daemon:
        daemon.wait_for("loading")
        family = Family(daemon.process.pid)
        daemon.interrupt()
        assert daemon.wait() == 0
    assert family.has_ended()
    assert not list(tmp_path.iterdir())


def test_a_second_ctrl_c_does_not_wait_for_running_requests(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        serving(path, "layers=0,step_ms=10") as daemon,
        running("generate", "hello", f"--socket={path}", "--shift") as client,
    ):
        client.wait_for_output()
        family = Family(daemon.process.pid)
        daemon.interrupt()
        daemon.wait_for("daemon.draining")
        daemon.interrupt()
        assert daemon.wait() != 0
        assert client.wait() == 69
    assert family.has_ended()
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_generate_and_frees_the_slot(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(path, "layers=0,step_ms=5") as daemon:
        with running("generate", "hello", f"--socket={path}", "--shift") as client:
            client.wait_for_output()
            client.interrupt()
            assert client.wait() == 130
            assert "Traceback" not in client.rest()
        daemon.wait_for('"reason":"cancelled"')


def test_ctrl_c_ends_generate_and_the_daemon_that_loads_for_it() -> None:
    arguments = ("generate", "hello", "--model=load_ms=8000", REFERENCE)
    with running(*arguments, on_terminal=True) as command:
        command.wait_for("loading")
        family = Family(command.process.pid)
        command.interrupt()
        assert command.wait() == 130
        assert "Traceback" not in command.rest()
    assert len(family.pids) == 3  # the command, its daemon, and the daemon's log relay
    assert family.has_ended()


def test_ctrl_c_ends_generate_and_the_daemon_that_runs_for_it() -> None:
    arguments = ("generate", "hello", "--model=layers=0,step_ms=5", REFERENCE, "--shift")
    with running(*arguments) as command:
        command.wait_for_output()
        family = Family(command.process.pid)
        command.interrupt()
        assert command.wait() == 130
        assert "Traceback" not in command.rest()
    assert len(family.pids) == 3
    assert family.has_ended()


def test_a_killed_command_takes_its_daemon_with_it() -> None:
    arguments = ("generate", "hello", "--model=layers=0,step_ms=5", REFERENCE, "--shift")
    with running(*arguments) as command:
        command.wait_for_output()
        family = Family(command.process.pid)
        command.process.send_signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
    assert family.has_ended()
