from typing import get_args

from runnerd.failure import FailureCode
from tests.protocol.spec import table


def test_the_specification_names_every_kind_of_failure() -> None:
    assert [code for code, _ in table("Errors of a daemon")] == list(get_args(FailureCode))
