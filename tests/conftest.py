"""What all tests share."""

import pytest

from tests.own_children import forget_earlier

# The contract suite and the helpers assert too: show what they compared.
pytest.register_assert_rewrite("tests.engine", "tests.core", "tests.helpers")


@pytest.fixture
def counts_children() -> None:
    """Let `own_children` be those of the test alone."""
    forget_earlier()
