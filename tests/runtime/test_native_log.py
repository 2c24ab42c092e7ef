import json
import os
import signal
import subprocess
import sys
import textwrap

Line = dict[str, object]

PREAMBLE = """
import os, signal, sys, time
from runnerd.log import configure_logging
from runnerd.native_log import NativeLogRelay
output = configure_logging({level!r}, {log_format!r})
relay = NativeLogRelay.start(output)
def say(text):
    os.write(2, text.encode() if isinstance(text, str) else text)
"""


def start_daemon(body: str, level: str = "info", log_format: str = "json") -> subprocess.Popen[str]:
    """Start a process with a relay, in a process group of its own."""
    script = PREAMBLE.format(level=level, log_format=log_format) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_daemon(body: str, level: str = "info") -> tuple[int, str, list[Line]]:
    """Run a process with a relay to its end: its status, its stdout and its log lines.

    Its stderr ends only when its relay has ended too, so that no relay is ever left over.
    """
    with start_daemon(body, level) as daemon:
        out, err = daemon.communicate(timeout=20)
    return daemon.returncode, out, [json.loads(line) for line in err.splitlines()]


def texts(lines: list[Line]) -> list[object]:
    return [line["text"] for line in lines if line["event"] == "native.line"]


def test_a_native_line_becomes_a_log_line() -> None:
    status, _, lines = run_daemon("say('llama_load: error: no tensors\\n'); relay.stop()")
    assert status == 0
    (line,) = lines
    assert line["event"] == "native.line"
    assert line["level"] == "error"
    assert line["source"] == "stderr"
    assert line["text"] == "llama_load: error: no tensors"


def test_what_a_native_library_writes_is_relayed() -> None:
    body = "import ctypes; ctypes.CDLL(None).perror(b'warning'); relay.stop()"
    _, _, lines = run_daemon(body)
    assert [str(text).split(":")[0] for text in texts(lines)] == ["warning"]


def test_chat_of_the_library_is_logged_at_level_debug_only() -> None:
    body = "say('llama_context: n_ctx = 4096\\n'); relay.stop()"
    assert run_daemon(body, "info")[2] == []
    assert texts(run_daemon(body, "debug")[2]) == ["llama_context: n_ctx = 4096"]


def test_the_last_words_before_an_abort_are_kept() -> None:
    status, _, lines = run_daemon("say('GGML_ASSERT(n > 0)\\nlast words'); os.abort()")
    assert status == -signal.SIGABRT
    assert texts(lines) == ["GGML_ASSERT(n > 0)", "last words"]
    assert lines[1]["event"] == "native.cut_off"


def test_an_error_that_was_the_last_word_stays_the_last_line() -> None:
    status, _, lines = run_daemon("say('n_ctx = 4096\\nGGML_ASSERT(n > 0)\\n'); os.abort()")
    assert status == -signal.SIGABRT
    assert texts(lines) == ["GGML_ASSERT(n > 0)"]
    assert lines[-1]["event"] == "native.line"


def test_the_last_words_before_a_sigkill_are_kept() -> None:
    status, _, lines = run_daemon("say('one\\ntwo\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    assert status == -signal.SIGKILL
    assert texts(lines) == ["one", "two"]


def test_a_traceback_of_the_interpreter_is_an_error_line_by_line() -> None:
    status, _, lines = run_daemon("def f(): raise OSError('gone')\nf()")
    assert status == 1
    assert texts(lines)[0] == "Traceback (most recent call last):"
    assert texts(lines)[-1] == "OSError: gone"
    assert {line["level"] for line in lines} == {"error"}


def test_the_daemons_own_lines_are_not_relayed() -> None:
    body = "import structlog; structlog.get_logger().info('runner.started'); relay.stop()"
    assert [line["event"] for line in run_daemon(body)[2]] == ["runner.started"]


def test_control_characters_in_a_native_line_are_escaped() -> None:
    with start_daemon(
        "say(b'error \\x1b[31m\\xff\\r\\n'); relay.stop()", log_format="console"
    ) as it:
        _, err = it.communicate(timeout=20)
    assert err.rstrip("\n").isprintable()
    assert r"error \x1b[31m" in err


def test_last_lines_has_all_that_was_written_before_the_question() -> None:
    body = """
    for i in range(300):
        say(f'line {i}\\n')
    say('and a begun one')
    print(relay.last_lines())
    relay.stop()
    """
    _, out, lines = run_daemon(body)
    assert out.strip() == repr([*(f"line {i}" for i in range(251, 300)), "and a begun one"])
    assert lines == []


def test_last_lines_can_be_asked_again_and_again() -> None:
    body = """
    for i in range(5):
        say(f'line {i}\\n')
        print(len(relay.last_lines()))
    relay.stop()
    """
    assert run_daemon(body)[1].split() == ["1", "2", "3", "4", "5"]


def test_long_last_lines_are_cut() -> None:
    body = """
    for i in range(60):
        say('\\U0001f642' * 600 + '\\n')
    print([len(line) for line in relay.last_lines()])
    relay.stop()
    """
    assert run_daemon(body)[1].strip() == repr([500] * 50)


def test_last_lines_are_none_when_the_relay_is_dead() -> None:
    body = """
    os.kill(relay._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, relay._process.pid, os.WEXITED | os.WNOWAIT)
    print(relay.last_lines())
    relay.stop()
    say('to the real stderr\\n')
    """
    with start_daemon(body) as daemon:
        out, err = daemon.communicate(timeout=20)
    assert out == "[]\n"
    assert err == "to the real stderr\n"


def test_last_lines_waits_for_a_sleeping_relay_for_a_bounded_time() -> None:
    body = """
    os.kill(relay._process.pid, signal.SIGSTOP)
    began_at = time.monotonic()
    print(relay.last_lines(), 0.9 < time.monotonic() - began_at < 3)
    os.kill(relay._process.pid, signal.SIGCONT)
    say('awake\\n')
    print(relay.last_lines())
    relay.stop()
    """
    assert run_daemon(body)[1].splitlines() == ["[] True", "['awake']"]


def test_answers_that_nobody_takes_do_not_stop_the_relay() -> None:
    body = """
    for i in range(60):
        say('x' * 500 + '\\n')
    for i in range(1000):
        say(b'\\n' + relay._process.mark + b'0\\n')
    say('error: after the answers\\n')
    relay.stop()
    """
    assert texts(run_daemon(body)[2]) == ["error: after the answers"]


def test_stop_gives_the_descriptor_back_and_leaves_no_zombie() -> None:
    body = """
    relay.stop()
    relay.stop()
    say('raw\\n')
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print('no children')
    """
    with start_daemon(body) as daemon:
        out, err = daemon.communicate(timeout=20)
    assert out == "no children\n"
    assert err == "raw\n"


def test_stop_does_without_pidfds() -> None:
    body = """
    def refuse(pid, flags=0): raise PermissionError(1, 'Operation not permitted')
    os.pidfd_open = refuse
    say('error\\n')
    relay.stop()
    print('stopped')
    """
    status, out, lines = run_daemon(body)
    assert (status, out, texts(lines)) == (0, "stopped\n", ["error"])


def test_stop_does_not_wait_for_others_that_hold_the_descriptor() -> None:
    body = """
    import subprocess
    sleeper = subprocess.Popen(['sleep', '60'])
    relay.stop()
    sleeper.kill()
    sleeper.wait()
    print('stopped')
    """
    assert run_daemon(body)[1] == "stopped\n"


def test_signals_to_the_process_group_do_not_end_the_relay() -> None:
    body = """
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    print('ready', flush=True)
    seen = {signal.sigwait(numbers) for _ in numbers}
    say(f'error: after {len(seen)} signals\\n')
    relay.stop()
    """
    with start_daemon(body) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.killpg(daemon.pid, number)
        _, err = daemon.communicate(timeout=20)
    assert json.loads(err)["text"] == "error: after 4 signals"


def test_the_relay_holds_none_of_the_daemons_descriptors() -> None:
    body = """
    entries = [os.readlink(f'/proc/{relay._process.pid}/fd/{fd}')
               for fd in os.listdir(f'/proc/{relay._process.pid}/fd')]
    print(len(entries), sum(entry == os.readlink('/proc/self/fd/1') for entry in entries))
    relay.stop()
    """
    # Its pipe, its socket, and the real stderr twice: the output's, and its own descriptor 2.
    script = body.replace("entries =", "say('x\\n'); relay.last_lines()\n    entries =", 1)
    assert run_daemon(script)[1] == "4 0\n"


def n_suppressed(lines: list[Line]) -> int:
    return sum(int(str(line["n_lines"])) for line in lines if line["event"] == "native.suppressed")


def test_a_flood_is_bounded_and_counted() -> None:
    body = """
    for i in range(1000):
        say(''.join(f'error {100 * i + j}\\n' for j in range(100)))
    relay.stop()
    """
    _, _, lines = run_daemon(body)
    assert len(texts(lines)) + n_suppressed(lines) == 100_000
    assert len(texts(lines)) <= 20 + 8 * 20


def test_a_flood_of_long_lines_is_bounded_by_its_bytes() -> None:
    body = """
    for i in range(200):
        say('error ' + 'x' * 8000 + '\\n')
    relay.stop()
    """
    _, _, lines = run_daemon(body)
    assert len(texts(lines)) + n_suppressed(lines) == 200
    assert len(texts(lines)) <= 4 + 20


def test_a_flood_does_not_hide_the_last_words() -> None:
    body = """
    say(''.join(f'error {i}\\n' for i in range(1000)) + 'GGML_ASSERT(x) failed\\n')
    os.abort()
    """
    _, _, lines = run_daemon(body)
    assert texts(lines)[-1] == "GGML_ASSERT(x) failed"


def test_suppressed_lines_are_counted_within_a_second_or_so_also_if_nothing_follows() -> None:
    body = """
    say(''.join(f'error {i}\\n' for i in range(250)))
    sys.stdin.readline()
    relay.stop()
    """
    with start_daemon(body) as daemon:
        assert daemon.stderr is not None
        lines: list[Line] = []
        while not lines or lines[-1]["event"] != "native.suppressed":
            lines.append(json.loads(daemon.stderr.readline()))
        daemon.communicate("\n", timeout=20)
    assert len(texts(lines)) + n_suppressed(lines) == 250


def test_a_log_reader_that_is_gone_stops_neither_relay_nor_daemon() -> None:
    body = """
    sys.stdin.readline()
    for i in range(3000):
        say(f'error {i} ' + 'x' * 100 + '\\n')
    relay.stop()
    print('done')
    """
    with start_daemon(body) as daemon:
        assert daemon.stderr is not None
        daemon.stderr.close()
        daemon.stderr = None
        out, _ = daemon.communicate("\n", timeout=20)
    assert out == "done\n"


def test_a_log_reader_that_sleeps_stops_neither_relay_nor_daemon() -> None:
    body = """
    for i in range(3000):
        say('error ' + 'x' * 1000 + '\\n')
    print('done', flush=True)
    relay.stop()
    """
    with start_daemon(body) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "done\n"
        daemon.communicate(timeout=20)


def test_without_a_relay_process_native_lines_go_to_stderr_as_they_are() -> None:
    body = """
    relay.stop()
    def no_fork(): raise OSError(11, 'no more processes')
    os.fork = no_fork
    relay = NativeLogRelay.start(output)
    say('raw\\n')
    print(relay.last_lines())
    relay.stop()
    """
    with start_daemon(body) as daemon:
        out, err = daemon.communicate(timeout=20)
    warning, raw = err.splitlines()
    assert json.loads(warning)["event"] == "native_log.degraded"
    assert json.loads(warning)["level"] == "warning"
    assert raw == "raw"
    assert out == "[]\n"


def test_a_closed_stderr_does_not_keep_the_daemon_from_running() -> None:
    script = PREAMBLE.format(level="info", log_format="json") + textwrap.dedent(
        """
        say('error\\n')
        print(relay.last_lines())
        relay.stop()
        """
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "['error']\n"
