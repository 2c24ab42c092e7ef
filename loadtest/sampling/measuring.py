"""What sampling costs: against private chains, and under a JSON schema against none.

Both sides of a ratio take turns in one process.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

from msgspec import Struct

from loadtest.bars import Bar, at_least, at_most
from loadtest.console import Tell
from runnerd.core.batch import (
    Batch,
    BatchKind,
    KVRemove,
    SampleFault,
    SamplerClose,
    SamplerOpen,
    Sampling,
    Span,
)
from runnerd.core.prompt import TextPart
from runnerd.engine import open_engine
from runnerd.engine.base import Decoded, Engine, EngineConfig
from runnerd.errors import DecodeAborted

USUAL = Sampling(temperature=0.8, top_k=40, top_p=0.95)
MOST_USUAL, MOST_GREEDY = 0.45, 0.1  # of private chains

N_SEQUENCES, N_CTX, N_STEPS = 8, 512, 48
LEAST_CONSTRAINED = 0.8  # of the tokens per second without a schema
TASK = "Describe an invented person as JSON, with name, city, age, hobbies and address.\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
        "hobbies": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 8},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "city", "age", "hobbies", "address"],
}


class SamplingOutcome(Struct, frozen=True):
    """Medians over the rounds, and the bars. Without a model nothing is generated."""

    private_ms: float
    usual_ms: float
    greedy_ms: float
    tokens_per_s: float
    constrained_tokens_per_s: float
    bars: list[Bar]


def measure_sampling(
    model: str | None,
    n_rounds: int,
    n_threads: int,
    tell: Tell,
    n_steps: int = N_STEPS,
) -> SamplingOutcome:
    """Measure both; of the ratios of the rounds, the median counts."""
    from loadtest.sampling.rows import measure_rows  # the other commands do without llama_cpp

    private_s, usual_s, greedy_s = measure_rows(n_rounds, USUAL)
    tell("the rows are sampled")
    bars = [
        at_most("top-k 40 and top-p to private chains", _ratio(usual_s, private_s), MOST_USUAL),
        at_most("greedy to private chains", _ratio(greedy_s, private_s), MOST_GREEDY),
    ]
    free: list[float] = []
    constrained: list[float] = []
    if model is not None:
        free, constrained = _measure_generation(model, n_rounds, n_threads, n_steps, tell)
        ratio = _ratio(constrained, free)
        bars.append(at_least("tokens/s with a JSON schema to without", ratio, LEAST_CONSTRAINED))
    return SamplingOutcome(
        private_ms=median(private_s) * 1e3,
        usual_ms=median(usual_s) * 1e3,
        greedy_ms=median(greedy_s) * 1e3,
        tokens_per_s=median(free) if free else 0.0,
        constrained_tokens_per_s=median(constrained) if constrained else 0.0,
        bars=bars,
    )


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over the rounds, of which each is a turn of both."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))


def _measure_generation(
    model: str, n_rounds: int, n_threads: int, n_steps: int, tell: Tell
) -> tuple[list[float], list[float]]:
    config = EngineConfig(model=model, n_slots=N_SEQUENCES, n_ctx=N_CTX, n_threads=n_threads)
    engine = open_engine(config, lambda _phase, _fraction: True)
    try:
        constraint = engine.constrain("json_schema", json.dumps(SCHEMA))
        free, constrained = [], []
        for n_round in range(n_rounds):
            sampling = replace(USUAL, seed=1000 * n_round)
            free.append(_tokens_per_s(engine, sampling, n_steps))
            sampling = replace(sampling, constraint=constraint)
            constrained.append(_tokens_per_s(engine, sampling, n_steps))
            tell(f"{free[-1]:.1f} tokens/s, with a schema {constrained[-1]:.1f}")
    finally:
        engine.close()
    return free, constrained


def _decode(engine: Engine, *spans: Span) -> Decoded:
    while True:
        try:
            return engine.decode(Batch(BatchKind.TOKENS, spans))
        except DecodeAborted:  # its threads have had no cores: again, with fewer
            engine.apply([KVRemove(span.slot_id, span.pos) for span in spans])


def _tokens_per_s(engine: Engine, sampling: Sampling, n_steps: int) -> float:
    """Generate in lockstep; a sequence that ends begins again behind its prompt."""
    prompt = engine.expand([TextPart(TASK)]).inputs
    slots = range(N_SEQUENCES)
    for slot in slots:
        engine.apply([SamplerOpen(slot, replace(sampling, seed=sampling.seed + slot))])
        _decode(engine, Span(slot, slot, 0, prompt[:-1]))
    inputs, pos = [prompt[-1]] * N_SEQUENCES, [len(prompt) - 1] * N_SEQUENCES
    n_ends = 0
    began_at = perf_counter()
    for _ in range(n_steps):
        spans = tuple(Span(slot, slot, pos[slot], (inputs[slot],), True) for slot in slots)
        for slot, sampled in enumerate(_decode(engine, *spans).sampled):
            assert not isinstance(sampled, SampleFault), sampled.message
            inputs[slot] = sampled if isinstance(sampled, int) else sampled.token
            pos[slot] += 1
            if engine.is_end(inputs[slot]):
                n_ends += 1
                again = replace(sampling, seed=sampling.seed + slot + N_SEQUENCES * n_ends)
                inputs[slot], pos[slot] = prompt[-1], len(prompt) - 1
                engine.apply([SamplerClose(slot), SamplerOpen(slot, again)])
                engine.apply([KVRemove(slot, pos[slot])])
    took_s = perf_counter() - began_at
    for slot in slots:
        engine.apply([SamplerClose(slot), KVRemove(slot, 0)])
    return N_SEQUENCES * n_steps / took_s
