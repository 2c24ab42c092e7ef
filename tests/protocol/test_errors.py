from typing import get_args

import pytest

from runnerd import errors
from runnerd_protocol.errors import (
    FAILED_CODES,
    PROTOCOL_ERROR_CODES,
    FailedCode,
    ProtocolErrorCode,
)


def request_errors() -> list[type[errors.RequestError]]:
    return errors.RequestError.__subclasses__()


@pytest.mark.parametrize("kind", request_errors())
def test_the_code_of_an_error_is_one_that_the_protocol_knows(
    kind: type[errors.RequestError],
) -> None:
    retryable = {str(code): meaning.retryable for code, meaning in FAILED_CODES.items()}
    assert retryable[kind.code] == kind.retryable


def test_every_code_of_failed_is_one_that_is_sent() -> None:
    of_the_wire = {"bad_message", "duplicate_id", "answer_too_large"}
    assert set(FAILED_CODES) == {kind.code for kind in request_errors()} | of_the_wire


def test_the_tables_have_the_codes_of_the_types() -> None:
    assert tuple(FAILED_CODES) == get_args(FailedCode)
    assert tuple(PROTOCOL_ERROR_CODES) == get_args(ProtocolErrorCode)
