"""Embeddings as they come over the wire, and as arrays of numbers."""

import sys
from array import array
from typing import TYPE_CHECKING

from runnerd.streams import Mailbox
from runnerd_protocol.messages import Embeddings

if TYPE_CHECKING:
    Vector = array[float]
else:
    Vector = array  # cannot be subscripted before Python 3.12


async def all_vectors(mailbox: Mailbox) -> list[Vector]:
    """Wait for the answers to a request for embeddings; return the vectors of all its inputs."""
    vectors: list[Vector] = []
    while True:
        answer = await mailbox.get()
        assert isinstance(answer, Embeddings)
        vectors += vectors_of(answer)
        if answer.last:
            return vectors


def vectors_of(answer: Embeddings) -> list[Vector]:
    """Return the vectors of an answer as arrays of `n_dims` float32."""
    vectors = []
    for data in answer.vectors:
        vector = array("f", data)
        if sys.byteorder == "big":
            vector.byteswap()  # the wire is little-endian
        vectors.append(vector)
    return vectors
