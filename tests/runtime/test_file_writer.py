import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runnerd.file_writer import QUEUE_LINES, FileWriter
from tests.full_pipe import full_pipe


@pytest.fixture
def slow() -> Iterator[tuple[int, FileWriter]]:
    """Yield a writer to a full pipe, which takes nothing until it is read: its other end too."""
    reader, writer_fd = full_pipe()
    writer = FileWriter(writer_fd)
    yield reader, writer
    os.close(reader)
    writer.close()


def test_a_line_is_in_the_file_once_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = FileWriter(os.open(path, os.O_WRONLY | os.O_CREAT))
    for i in range(100):
        writer.write(b"%d" % i)
        assert path.read_bytes().endswith(b"%d\n" % i)
    writer.close()


def test_what_is_too_much_for_the_queue_is_dropped_and_counted_once(
    slow: tuple[int, FileWriter],
) -> None:
    _, writer = slow
    for _ in range(QUEUE_LINES + 100):
        writer.write(b"x")
    assert 90 <= writer.n_dropped <= 100


def test_a_line_that_was_to_tell_of_dropped_ones_and_is_lost_hands_the_count_on() -> None:
    reader, writer_fd = os.pipe()
    os.close(reader)
    writer = FileWriter(writer_fd)
    for n_dropped in range(1, 4):
        writer.write(b"x")
        assert writer.n_dropped == n_dropped
    writer.close()


def test_a_fork_writes_by_a_thread_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = FileWriter(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    writer.write(b"parent")
    child = os.fork()
    if not child:
        writer.write(b"child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    assert path.read_bytes() == b"parent\nchild\n"


def test_who_ends_waits_for_the_lines_and_not_for_ever(slow: tuple[int, FileWriter]) -> None:
    reader, writer = slow
    writer.write(b"x")
    writer.linger(0.01)
    os.read(reader, 2**20)
    writer.write(b"last")
    writer.linger(20)
    assert os.read(reader, 2**20).endswith(b"last\n")
