"""What a sampler chain chooses from: one array that all sequences share, or a few tokens of it.

A private array per sequence, as llama_sampler_sample keeps, is 3 MiB for a large vocabulary
and makes the sequences push each other out of the CPU's cache.
"""

import ctypes

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.library import lib

Row = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

# As llama_token_data.
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
N_LAYERS = 64  # of a row laid out in as many layers; fewer: more to gather, more: more blocks


class Candidates:
    """Tokens and their logits in an array that llama.cpp's samplers read and reorder."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._entries = np.zeros(n_vocab, CANDIDATE)
        self._data = self._entries.ctypes.data_as(lib.llama_token_data_p)
        self._array = lib.llama_token_data_array()
        self._reference = ctypes.byref(self._array)

    def put(self, row: Row, ids: Tokens | None = None) -> int:
        """Let the tokens `ids` (None: all) be the candidates, but for those of -inf.

        Returns:
            How many there are. A chain must not see 0 of them.
        """
        logits = row if ids is None else row[ids]
        possible = logits > -np.inf
        if not possible.all():
            ids = np.flatnonzero(possible).astype(np.int32) if ids is None else ids[possible]
            logits = logits[possible]
        n_candidates = logits.size
        self._entries["id"][:n_candidates] = self._ids if ids is None else ids
        self._entries["logit"][:n_candidates] = logits
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, n_candidates, -1, False
        return n_candidates

    def put_equals(self, ids: Tokens) -> int:
        """Let tokens be the candidates with a logit of 0 each, and return how many there are."""
        self._entries["id"][: ids.size] = ids
        self._entries["logit"][: ids.size] = 0.0
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, ids.size, -1, False
        return ids.size

    def apply(self, sampler: ctypes.c_void_p) -> None:
        """Let a sampler filter the candidates, change their logits, or select one."""
        lib.llama_sampler_apply(sampler, self._reference)

    def possible(self) -> Tokens:
        """Return the candidates whose logit a sampler has not made -inf, in their order."""
        entries = self._entries[: self._array.size]
        ids: Tokens = entries["id"][entries["logit"] > -np.inf]
        return ids

    @property
    def selected(self) -> int:
        """The token that a chain has selected."""
        array = self._array
        assert 0 <= array.selected < array.size, "the chain selected nothing"
        token: int = array.data[array.selected].id
        return token


def best(row: Row, n_best: int) -> Tokens:
    """Return the tokens whose logits are no less than the `n_best`-th largest, ascending.

    With equal logits they can be more; with tokens of -inf, which are left out, less.
    """
    width = row.size // N_LAYERS
    if width <= n_best:
        return _no_less(row, np.arange(row.size, dtype=np.int32), n_best)
    # A block is every width-th entry. The blocks with the n_best largest maxima hold that many
    # entries at least as large as the least of these maxima: what is wanted is in these blocks.
    main = N_LAYERS * width
    maxima = row[:main].reshape(N_LAYERS, width).max(axis=0)
    least = np.partition(maxima, width - n_best)[width - n_best]
    blocks = np.flatnonzero(maxima >= least)
    layers = np.arange(0, main, width)
    members = np.add.outer(layers, blocks).ravel()
    if main < row.size:
        members = np.concatenate((members, np.arange(main, row.size)))
    return _no_less(row[members], members.astype(np.int32), n_best)


def at_least(row: Row, least: float) -> Tokens:
    """Return the tokens whose logits are at least so large, ascending."""
    return np.flatnonzero(row >= np.float32(least)).astype(np.int32)


def has_equals(row: Row, ids: Tokens) -> bool:
    """Whether two of the tokens have the same logit, so that their order is anybody's guess."""
    values = np.sort(row[ids])
    return bool((values[1:] == values[:-1]).any())


def _no_less(values: Row, ids: Tokens, n_best: int) -> Tokens:
    if n_best < values.size:
        least = np.partition(values, values.size - n_best)[values.size - n_best]
        ids = ids[(values >= least) & (values > -np.inf)]
    else:
        ids = ids[values > -np.inf]
    ids.sort()
    return ids
