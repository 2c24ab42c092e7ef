"""Contract: constraints, in the form that every engine reads."""

import pytest

from runnerd.core.batch import SampleFault, Sampling
from runnerd.engine.base import Engine
from runnerd.errors import BadGrammar
from tests.engine.driving import PROMPTS, generate_to_end, sample_once, tokens

TEXTS = (b"yes", b"no, never\n", b'"quoted"')
GRAMMAR = r'root ::= "yes" | "no, never\n" | "\"quoted\""'


class GrammarContract:
    """Constraints, in the form that every engine reads."""

    @pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
    def test_a_constraint_gives_one_of_its_texts_and_the_end(
        self, engine: Engine, temperature: float
    ) -> None:
        constraint = engine.constrain("grammar", GRAMMAR)
        prompt = tokens(engine, PROMPTS[0])
        for seed in range(3):
            sampling = Sampling(temperature=temperature, seed=seed, constraint=constraint)
            said, end = generate_to_end(engine, prompt, sampling, 32)
            assert said in TEXTS
            assert isinstance(end, int)

    def test_one_constraint_serves_many_samplers(self, engine: Engine) -> None:
        sampling = Sampling(constraint=engine.constrain("grammar", 'root ::= "forced"'))
        for text in PROMPTS[:2]:
            said, _ = generate_to_end(engine, tokens(engine, text), sampling, 32)
            assert said == b"forced"

    def test_a_complete_text_ends_though_the_end_is_ignored(self, engine: Engine) -> None:
        constraint = engine.constrain("grammar", 'root ::= "x"')
        sampling = Sampling(constraint=constraint, ignore_end=True)
        said, end = generate_to_end(engine, tokens(engine, PROMPTS[0]), sampling, 32)
        assert said == b"x"
        assert isinstance(end, int)

    def test_a_ban_holds_against_a_constraint(self, engine: Engine) -> None:
        bans = tuple((token, float("-inf")) for token in range(engine.model.n_vocab))
        constraint = engine.constrain("grammar", GRAMMAR)
        sampling = Sampling(constraint=constraint, logit_bias=bans)
        sampled = sample_once(engine, tokens(engine, PROMPTS[0]), sampling, ())
        assert isinstance(sampled, SampleFault)

    @pytest.mark.parametrize("text", ["", "root", 'root ::= "open', 'twig ::= "a"'])
    def test_a_malformed_grammar_is_refused(self, engine: Engine, text: str) -> None:
        with pytest.raises(BadGrammar):
            engine.constrain("grammar", text)

    def test_a_malformed_schema_is_refused(self, engine: Engine) -> None:
        with pytest.raises(BadGrammar):
            engine.constrain("json_schema", "{")
