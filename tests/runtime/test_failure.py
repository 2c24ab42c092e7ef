import errno

import pytest

from runnerd.client import CannotSend
from runnerd.commands.failure import (
    IO_ERROR,
    REQUEST_FAILED,
    UNAVAILABLE,
    CommandFailed,
    translated,
)


@pytest.mark.parametrize(
    ("error", "words", "exit_code"),
    [
        (OSError(errno.ENOSPC, "No space left"), "cannot write: No space left", IO_ERROR),
        (OSError(errno.EMFILE, "Too many files"), "cannot go on: Too many files", UNAVAILABLE),
        (CannotSend("Generate of 9 bytes, a frame holds 8"), "Generate of 9", REQUEST_FAILED),
    ],
)
def test_a_failure_is_one_line_and_an_exit_status(
    error: Exception, words: str, exit_code: int
) -> None:
    with pytest.raises(CommandFailed, match=words) as caught, translated():
        raise error
    assert caught.value.exit_code == exit_code


def test_what_fails_with_a_path_is_not_taken_for_a_failure_to_write() -> None:
    with pytest.raises(FileNotFoundError), translated(), open("/no/such/file"):
        pytest.fail("there is no such file")
