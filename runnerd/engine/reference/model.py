"""The model: seeded weights, embeddings, layers, and the logits of a row.

Numbers are whole, in units of 1/ONE, and held in float64. As long as every sum stays below
2**53 no addition rounds, so neither the order of a sum nor the shape of a product matters.
Products are brought back to units by `whole`, value by value.
"""

import string
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Adapters, Span
from runnerd.engine.reference.options import ReferenceOptions
from runnerd.engine.reference.tokenizer import BOS, END_TOKENS, IM_START, N_VOCAB

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ONE = 256.0
WEIGHT = 64.0  # unit of the weights
SPREAD = 3.0  # of the logits: confident enough for transcripts that differ, not for fixed ones
N_PHASES = 61  # without layers the logits repeat after so many positions; a prime
ADAPTER_STREAM = 1 << 63  # of random numbers; a medium's id is less


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer."""

    query: Floats
    key: Floats
    value: Floats
    out: Floats
    up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that adapters change; `table` is what `output` makes of each token alone."""

    layers: tuple[Layer, ...]
    output: Floats
    table: Floats


class Model:
    """Weights, and what is computed row by row. Attention is in `cache`.

    `base` are the weights without adapters.
    """

    def __init__(self, options: ReferenceOptions) -> None:
        self._seed = options.seed
        self._dim = dim = options.dim
        rng = _generator(options.seed, 0)
        self.embeddings = whole(rng.standard_normal((N_VOCAB, dim)) * ONE)
        output = _weights(rng, dim, N_VOCAB, SPREAD)
        self.bias = _readable(options.end_bias if options.layers else None)
        layers = tuple(
            Layer(
                query=_weights(rng, dim, dim, 2.0),
                key=_weights(rng, dim, dim),
                value=_weights(rng, dim, dim),
                out=_weights(rng, dim, dim, 2.0),
                up=_weights(rng, dim, 2 * dim),
                down=_weights(rng, 2 * dim, dim),
            )
            for _ in range(options.layers)
        )
        self.base = Weights(layers, output, self._project(self.embeddings, output))
        self.phases = whole(rng.standard_normal((N_PHASES, N_VOCAB)) * ONE * SPREAD) / ONE

    @property
    def n_params(self) -> int:
        """How many weights there are."""
        per_layer = 8 * self._dim**2
        return self.embeddings.size + self.base.output.size + per_layer * len(self.base.layers)

    def adapted(self, adapters: Adapters) -> Weights:
        """Return the weights with adapters applied: other values to store, another output."""
        layers, output = list(self.base.layers), self.base.output
        for adapter in adapters:
            digest = blake2b(adapter.name.encode(), digest_size=8).digest()
            rng = _generator(self._seed, int.from_bytes(digest, "big") | ADAPTER_STREAM)
            output = output + whole(_weights(rng, self._dim, N_VOCAB, SPREAD) * adapter.scale)
            for index, layer in enumerate(layers):
                change = whole(_weights(rng, self._dim, self._dim) * adapter.scale)
                layers[index] = replace(layer, value=layer.value + change)
        return Weights(tuple(layers), output, self._project(self.embeddings, output))

    def embed(self, tokens: Ints) -> Floats:
        """Return the embedding rows of tokens."""
        rows: Floats = self.embeddings[tokens]
        return rows

    def embed_media(self, span: Span) -> Floats:
        """Return the embedding rows of a medium."""
        stop = span.row0 + len(span.inputs)
        rng = _generator(self._seed, span.media_id)
        return whole(rng.standard_normal((stop, self._dim)) * ONE)[span.row0 :]

    def draw(self, stream: int) -> Floats:
        """Return the embedding row of a patch, by a number of its own (63 bits)."""
        return whole(_generator(self._seed, stream).standard_normal(self._dim) * ONE)

    def logits(self, weights: Weights, rows: Floats, positions: Ints) -> Floats:
        """Return the logits of rows that have been through the layers."""
        logits = self._project(rows, weights.output)
        return logits if weights.layers else logits + self.phases[positions % N_PHASES]

    def logits_of_tokens(self, weights: Weights, tokens: Ints, positions: Ints) -> Floats:
        """Return what `logits` gives for the embeddings of tokens, if there are no layers."""
        logits: Floats = weights.table[tokens] + self.phases[positions % N_PHASES]
        return logits

    def _project(self, rows: Floats, output: Floats) -> Floats:
        logits: Floats = normalised(rows) @ output / (ONE * WEIGHT) + self.bias
        return logits


def whole(values: Floats) -> Floats:
    """Round to whole numbers."""
    rounded: Floats = np.rint(values)
    return rounded


def normalised(rows: Floats) -> Floats:
    """Return rows with a mean square of one."""
    mean_square = (rows * rows).sum(axis=1, keepdims=True) / rows.shape[1]
    return whole(rows * ONE / np.sqrt(mean_square + 1.0))


def project(rows: Floats, weights: Floats) -> Floats:
    """Multiply rows by weights."""
    return whole(rows @ weights / WEIGHT)


def feed_forward(rows: Floats, layer: Layer) -> Floats:
    """Return what a layer's second half adds to rows."""
    return project(np.maximum(project(normalised(rows), layer.up), 0.0), layer.down)


def _generator(seed: int, stream: int) -> np.random.Generator:
    key = np.array([seed, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _weights(rng: np.random.Generator, n_in: int, n_out: int, spread: float = 1.0) -> Floats:
    return whole(rng.standard_normal((n_in, n_out)) * (WEIGHT * spread / np.sqrt(n_in)))


def _readable(end_bias: int | None) -> Floats:
    """Return a bias per token that makes text out of chance: letters above all."""
    bias = np.full(N_VOCAB, -4.0)
    bias[128:256] = -3.0  # a character of several bytes now and then
    bias[[ord(char) for char in string.punctuation + string.digits + "\n"]] = -1.0
    bias[[ord(char) for char in string.ascii_uppercase]] = 1.0
    bias[[ord(char) for char in string.ascii_lowercase]] = 5.0
    bias[ord(" ")] = 7.0
    bias[[BOS, IM_START]] = -np.inf  # nothing a model says
    bias[list(END_TOKENS)] = -np.inf if end_bias is None else end_bias
    return bias
