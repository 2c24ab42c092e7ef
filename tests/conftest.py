"""What all tests share."""

from pathlib import Path

import pytest

from tests.own_children import forget_earlier

# The contract suite and the helpers assert too: show what they compared.
pytest.register_assert_rewrite("tests.engine", "tests.core", "tests.helpers")


@pytest.fixture
def counts_children() -> None:
    """Let `own_children` be those of the test alone."""
    forget_earlier()


# Folders whose tests start processes, measure time, or boot a system of their own.
ALONE = ("e2e", "loadtest")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what wants the machine for itself; leave out what takes minutes.

    llama.cpp's threads wait for each other without sleeping: two models at a time are slower than
    one after the other.
    """
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in ALONE or item.get_closest_marker("llama"):
            item.add_marker(pytest.mark.alone)
    if "soak" in config.getoption("markexpr"):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
