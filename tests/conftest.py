"""What all tests share."""

import pytest

# The contract suite and the helpers assert too: show what they compared.
pytest.register_assert_rewrite("tests.engine", "tests.core", "tests.helpers")
