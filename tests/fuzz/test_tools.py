"""Scripts, their mutators, and the choice of what is kept."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.minimise import Ways, smallest_cover
from tests.fuzz.script import MAX_ACTS, parse, write
from tests.fuzz.targets import TARGETS, Target

GGUF = TARGETS["gguf"]


@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_script_that_can_be_written_again(data: bytes) -> None:
    acts = parse(data)
    assert len(acts) <= MAX_ACTS
    assert parse(write(acts)) == acts


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_change_is_made_by_its_seed_and_is_not_too_long(target: Target) -> None:
    inputs = [b"", *(path.read_bytes() for path in target.corpus)]
    draw = Random(1)
    for seed in range(100):
        data, other = draw.choice(inputs), draw.choice(inputs)
        changed = target.mutate(data, 500, seed)
        assert changed == target.mutate(data, 500, seed)
        crossed = target.cross(data, other, 500, seed)
        assert crossed == target.cross(data, other, 500, seed)
        assert max(len(changed), len(crossed)) <= 500


def ways_of(inputs: list[bytes]) -> set[tuple[str, int, int]]:
    with Ways(GGUF.packages) as ways, GGUF.open() as run:
        for data in inputs:
            run(data)
    return ways.taken


def test_the_inputs_that_are_kept_go_wherever_all_of_them_went() -> None:
    inputs = [path.read_bytes() for path in GGUF.corpus[:8]]
    inputs += [data + b"\0" for data in inputs]
    kept = smallest_cover(GGUF, inputs)
    assert len(kept) < len(inputs)
    assert ways_of(kept) == ways_of(inputs)
