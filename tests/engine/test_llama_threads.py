"""How the encoder and passes share the cores."""

import pytest

pytest.importorskip("llama_cpp")

from runnerd.engine.llama.threads import ThreadShares, share_threads


@pytest.mark.parametrize(
    ("n_threads", "encode", "beside"),
    [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (7, 3, 4), (16, 8, 8)],
)
def test_encoder_and_passes_together_want_no_more_cores_than_there_are(
    n_threads: int, encode: int, beside: int
) -> None:
    assert share_threads(n_threads) == ThreadShares(n_threads, encode, beside)
    assert encode + beside <= max(2, n_threads)
