"""What a request asks for, as the core is told it; and what the model makes impossible."""

from dataclasses import fields, replace
from math import inf

import pytest
from msgspec.structs import asdict

from runnerd.core.batch import Adapter, Sampling
from runnerd.core.prompt import ImagePart, TextPart, TokensPart
from runnerd.engine.base import ModelInfo
from runnerd.errors import InvalidRequest, RequestError, Unsupported
from runnerd.options import (
    N_SEEDS,
    check_images,
    check_options,
    is_long,
    media_indexes,
    options_of,
    parts_of,
)
from runnerd_protocol import messages as wire

MODEL = ModelInfo(
    name="tiny",
    architecture="none",
    n_vocab=50,
    n_ctx_train=64,
    n_params=1,
    size_bytes=1,
    chat_template="",
    bos_token=None,
    end_tokens=(0,),
    adapters=("style", "tone"),
)
OFF = Sampling()
ON: dict[str, object] = {
    "temperature": 0.5,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2.0,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.25,
    "typical_p": 0.5,
    "top_n_sigma": 1.0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "repeat_penalty": 1.5,
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "penalty_last_n": 5,
    "dry_multiplier": 1.0,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_last_n": 9,
    "dry_breakers": ("x",),
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.5,
    "ignore_end": True,
}


def generate(**options: object) -> wire.Generate:
    return wire.Generate(1, "x", **options)  # type: ignore[arg-type]  # whatever a test needs


def refusal(**options: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_options(generate(**options), MODEL)
    return caught.value


@pytest.mark.parametrize("name", ON)
def test_a_sampling_option_reaches_the_core_under_its_name(name: str) -> None:
    sampling = options_of(generate(**{name: ON[name]}), 0).sampling
    assert getattr(sampling, name) == ON[name]


def test_every_sampling_option_of_the_core_can_be_asked_for() -> None:
    named_otherwise = {"seed", "logit_bias", "n_logprobs", "constraint"}
    assert {field.name for field in fields(Sampling)} == {*ON, *named_otherwise}


def test_what_the_wire_leaves_out_is_off_in_the_core_but_for_the_usual_filters() -> None:
    sampling = options_of(generate(), 0).sampling
    usual = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert sampling == replace(OFF, **usual)  # type: ignore[arg-type]


def test_what_is_no_sampling_reaches_the_core_too() -> None:
    asked = generate(
        max_tokens=5,
        stop=["a"],
        n_keep=2,
        truncate=True,
        shift=True,
        cache_scope="tenant",
        priority="low",
        return_progress=True,
    )
    options = options_of(asked, 0)
    assert (options.max_tokens, options.stops, options.n_keep) == (5, ("a",), 2)
    assert (options.truncate, options.shift, options.wants_progress) == (True, True, True)
    assert (options.cache_scope, options.priority) == ("tenant", "low")


def test_a_bias_of_minus_a_thousand_bans_a_token() -> None:
    sampling = options_of(generate(logit_bias={9: -1000.0, 3: 1.5}), 0).sampling
    assert sampling.logit_bias == ((3, 1.5), (9, -inf))


@pytest.mark.parametrize(("n", "n_logprobs"), [(None, None), (0, 0), (5, 5)])
def test_logprobs_are_wanted_if_asked_for(n: int | None, n_logprobs: int | None) -> None:
    assert options_of(generate(logprobs=n), 0).sampling.n_logprobs == n_logprobs


def test_each_completion_has_a_seed_of_its_own_within_the_range() -> None:
    last = N_SEEDS - 1
    assert [options_of(generate(n=3), last, i).sampling.seed for i in range(3)] == [last, 0, 1]


def test_adapters_are_sorted_by_name_and_those_without_a_scale_left_out() -> None:
    wanted = [wire.Adapter("tone", 0.5), wire.Adapter("mood", 0.0), wire.Adapter("style")]
    options = options_of(generate(adapters=wanted), 0)
    assert options.adapters == (Adapter("style", 1.0), Adapter("tone", 0.5))


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {0: 1.0, 49: 1.0}},
        {"logprobs": 50},
        {"adapters": [wire.Adapter("tone"), wire.Adapter("style", 0.0)]},
        {"grammar": 'root ::= "x"'},
        {"json_schema": "{}"},
        {"prompt": "a\0b"},
        {"cache_scope": "a\0b"},
    ],
)
def test_what_the_model_can_do_is_not_refused(options: dict[str, object]) -> None:
    check_options(wire.Generate(**{**asdict(generate()), **options}), MODEL)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"logit_bias": {3: 1.0, 50: 1.0}}, "logit_bias[50]", "50"),
        ({"logprobs": 51}, "logprobs", "51"),
        ({"grammar": "a", "json_schema": "{}"}, "json_schema", "given beside a grammar"),
        ({"adapters": [wire.Adapter("mood")]}, "adapters[0].name", "mood"),
        ({"adapters": [wire.Adapter("tone"), wire.Adapter("tone")]}, "adapters", None),
        ({"adapters": [wire.Adapter("tone\0")]}, "adapters[0].name", None),
        ({"stop": ["a", "before\0after"]}, "stop[1]", "text with NUL at character 6"),
        ({"dry_breakers": ("\0",)}, "dry_breakers[0]", None),
        ({"grammar": 'root ::= "\0"'}, "grammar", None),
        ({"json_schema": "\0"}, "json_schema", None),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_field_and_value(
    options: dict[str, object], field: str, value: str | None
) -> None:
    details = refusal(**options).details
    assert details["field"] == field
    assert value is None or details["value"] == value


def test_an_unknown_adapter_is_refused_with_the_names_that_there_are() -> None:
    assert "style, tone" in str(refusal(adapters=[wire.Adapter("mood")]))


def test_a_model_for_embeddings_does_not_generate() -> None:
    with pytest.raises(Unsupported, match="tiny makes embeddings") as caught:
        check_options(generate(), replace(MODEL, can_generate=False))
    assert isinstance(caught.value, RequestError)


# --- prompts ------------------------------------------------------------------------------------


def test_each_part_of_a_prompt_keeps_its_place() -> None:
    image = ImagePart(7, 30, 20)
    prompt: list[wire.Part] = [
        wire.MediaPart(b"x"),
        wire.TextPart("a", special=True),
        wire.TokensPart([1]),
    ]
    assert parts_of(prompt, {0: image}) == [image, TextPart("a", special=True), TokensPart((1,))]
    assert parts_of("a") == [TextPart("a")]


def test_an_image_that_nobody_has_read_is_refused_by_its_place() -> None:
    prompt: list[wire.Part] = [wire.TextPart("a"), wire.MediaPart(b"x")]
    with pytest.raises(InvalidRequest) as caught:
        parts_of(prompt)
    assert caught.value.details["field"] == "prompt[1]"


def test_the_images_of_a_prompt_are_found_and_counted() -> None:
    prompt: list[wire.Part] = [wire.TextPart("a"), *[wire.MediaPart(b"x")] * wire.MAX_MEDIA]
    assert media_indexes(prompt) == list(range(1, 65))
    assert media_indexes("a" * 100) == []
    with pytest.raises(InvalidRequest, match="65 images, expected at most 64"):
        media_indexes([*prompt, wire.MediaPart(b"y")])


def test_a_few_images_take_as_long_as_a_long_text() -> None:
    assert is_long([wire.MediaPart(b"x")] * 2)
    assert not is_long([wire.MediaPart(b"x"), wire.TextPart("a")])


def test_a_model_without_image_rows_reads_no_images() -> None:
    check_images(replace(MODEL, n_image_rows=1))
    with pytest.raises(Unsupported, match="tiny reads no images"):
        check_images(MODEL)
