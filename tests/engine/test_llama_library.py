import pytest

from runnerd.errors import EngineBroken, NoKVSlot

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.library import check_decode  # noqa: E402 needs llama_cpp


def test_a_good_decode_is_no_error() -> None:
    check_decode(0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, NoKVSlot),
        (2, EngineBroken),
        (-1, AssertionError),
        (-2, EngineBroken),
        (-3, EngineBroken),
    ],
)
def test_a_code_of_decode_is_one_error(code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_decode(code)
