"""The installed model's vocabulary by itself, and sampling of it without a model."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Sampled, SampleFault, Sampling
from runnerd.core.prompt import TextPart
from runnerd.engine.base import ConstraintKind
from runnerd.engine.llama.grammar import Constraint, GrammarCompiler
from runnerd.engine.llama.library import lib, quiet_load
from runnerd.engine.llama.sampler import Samplers
from runnerd.engine.llama.vocabulary import Vocabulary
from tests.engine.llama_builders import MODEL

Row = NDArray[np.float32]


@dataclass(frozen=True)
class Words:
    """A vocabulary, what compiles grammars for it, and samplers."""

    vocabulary: Vocabulary
    samplers: Samplers
    compiler: GrammarCompiler
    handle: int

    def constraint(self, text: str, kind: ConstraintKind = "grammar") -> Constraint:
        """Compile a grammar."""
        return self.compiler.compile(kind, text)

    def token(self, text: str) -> int:
        """Return the one token that a text is."""
        (token,) = self.vocabulary.expand([TextPart(text, special=True)], add_bos=False).inputs
        return token

    def row(self, favoured: dict[int, float], rest: float = 0.0) -> Row:
        """Make a row of logits."""
        row = np.full(self.vocabulary.n_tokens, rest, np.float32)
        for token, logit in favoured.items():
            row[token] = logit
        return row

    def pick(self, seq_id: int, row: Row) -> Sampled:
        """Let one sequence pick."""
        (sampled,) = self.samplers.sample((seq_id,), row[np.newaxis]).sampled
        return sampled

    def write(self, sampling: Sampling, rng: np.random.Generator, n_tokens: int) -> str | None:
        """Write by random logits until an end token; None: there was none."""
        self.samplers.open(0, sampling, ())
        text = b""
        try:
            for _ in range(n_tokens):
                row = rng.standard_normal(self.vocabulary.n_tokens, np.float32) * np.float32(4)
                token = self.pick(0, row)
                assert isinstance(token, int), token
                if self.vocabulary.is_end(token):
                    return text.decode()
                text += self.vocabulary.token_bytes(token)
        finally:
            self.samplers.close(0)
        return None


def is_fault(sampled: Sampled, words: str) -> bool:
    """Whether it is a fault that says these words."""
    return isinstance(sampled, SampleFault) and words in sampled.message


@contextmanager
def loaded_words() -> Iterator[Words]:
    """Load the vocabulary for a `with` block."""
    assert MODEL is not None
    params = lib.llama_model_default_params()
    params.vocab_only = True
    with quiet_load():
        model = lib.llama_model_load_from_file(MODEL.encode(), params)
    vocabulary = Vocabulary(model)
    handle = lib.llama_model_get_vocab(ctypes.c_void_p(model))
    samplers = Samplers(vocabulary.n_tokens, vocabulary.end_tokens, handle)
    try:
        yield Words(vocabulary, samplers, GrammarCompiler(handle, vocabulary.n_tokens), handle)
    finally:
        samplers.close_all()
        lib.llama_model_free(model)
