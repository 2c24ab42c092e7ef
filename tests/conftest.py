"""What all tests share."""

import pytest
from hypothesis import settings

from tests.own_children import forget_earlier

# How long an example takes says nothing on a machine with other work.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# The contract suite and the helpers assert too: show what they compared.
pytest.register_assert_rewrite("tests.engine", "tests.core", "tests.helpers")


@pytest.fixture
def counts_children() -> None:
    """Let `own_children` be those of the test alone."""
    forget_earlier()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, whatever else `-m` chooses."""
    if "soak" in config.getoption("markexpr"):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
