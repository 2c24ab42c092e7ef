import pytest

from runnerd import errors
from runnerd_protocol.errors import FAILED_CODES


def request_errors() -> list[type[errors.RequestError]]:
    return [errors.RequestError, *errors.RequestError.__subclasses__()]


@pytest.mark.parametrize("kind", request_errors())
def test_the_code_of_an_error_is_one_that_the_protocol_knows(
    kind: type[errors.RequestError],
) -> None:
    retryable = {str(code): meaning.retryable for code, meaning in FAILED_CODES.items()}
    assert retryable[kind.code] == kind.retryable
