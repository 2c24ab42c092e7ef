"""What a request asks for, checked against the model, as the values that the core speaks in."""

from collections.abc import Mapping
from itertools import groupby
from typing import assert_never

from runnerd.core.batch import Adapter, Adapters, Sampling
from runnerd.core.prompt import ImagePart, Part, TextPart, TokensPart
from runnerd.core.sequence import Options
from runnerd.engine.base import ModelInfo
from runnerd.errors import InvalidRequest, PromptTooLong, Unsupported
from runnerd_protocol import messages as wire

INLINE_SIZE = 2**13  # what is longer goes through in a thread; for shorter the hop costs more
N_SEEDS = 2**32 - 1  # llama.cpp takes the number after the last for "draw one"
IMAGE_SIZE = 2**12  # rows of a large image: each becomes an input with a hash of its own
NO_IMAGES: Mapping[int, ImagePart] = {}
BAN = -1000.0  # the lowest bias of the wire: such a token is never sampled


def parts_of(prompt: wire.Prompt, images: Mapping[int, ImagePart] = NO_IMAGES) -> list[Part]:
    """Return a request's prompt as parts; a bare string is plain text.

    `images` are those of its media parts, by their indexes.

    Raises:
        InvalidRequest: there is a media part without its image: the request takes none.
    """
    if isinstance(prompt, str):
        return [TextPart(prompt)]
    return [_part_of(index, part, images) for index, part in enumerate(prompt)]


def _part_of(index: int, part: wire.Part, images: Mapping[int, ImagePart]) -> Part:
    match part:
        case wire.TextPart(text, special):
            return TextPart(text, special)
        case wire.TokensPart(tokens):
            return TokensPart(tuple(tokens))
        case wire.MediaPart():
            if index not in images:
                raise InvalidRequest(f"prompt[{index}]", "an image", "text or tokens")
            return images[index]
        case _:
            assert_never(part)


def media_indexes(prompt: wire.Prompt) -> list[int]:
    """Return where the images of a prompt are.

    Raises:
        InvalidRequest: there are too many.
    """
    if isinstance(prompt, str):
        return []
    indexes = [index for index, part in enumerate(prompt) if isinstance(part, wire.MediaPart)]
    if len(indexes) > wire.MAX_MEDIA:
        raise InvalidRequest("prompt", f"{len(indexes)} images", f"at most {wire.MAX_MEDIA}")
    return indexes


def is_long(prompt: wire.Prompt) -> bool:
    """Whether there are so many parts, characters and token ids that it takes a while.

    An image counts for what a large one is expanded to.
    """
    return size_of(prompt) > INLINE_SIZE


def size_of(prompt: wire.Prompt) -> int:
    """Return how many parts, characters, token ids and image rows there are to go through."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(1 + _size_of(part) for part in prompt)


def _size_of(part: wire.Part) -> int:
    match part:
        case wire.TextPart(text=text):
            return len(text)
        case wire.TokensPart(tokens=tokens):
            return len(tokens)
        case wire.MediaPart():
            return IMAGE_SIZE
        case _:
            assert_never(part)


def check_tokens_fit(request: wire.Generate, n_ctx: int) -> None:
    """Refuse more token ids than the context holds, before anything is made of them.

    Raises:
        PromptTooLong: with their number, which texts and images come on top of.
    """
    if request.truncate or isinstance(request.prompt, str):
        return
    n_tokens = sum(len(part.tokens) for part in request.prompt if isinstance(part, wire.TokensPart))
    if n_tokens > n_ctx:
        raise PromptTooLong(
            f"prompt of at least {n_tokens} tokens, context holds {n_ctx}",
            n_prompt=n_tokens,
            n_ctx=n_ctx,
        )


def check_images(model: ModelInfo) -> None:
    """Refuse images that the model cannot read, before anything is made of them.

    Raises:
        Unsupported: it reads none.
    """
    if not model.n_image_rows:
        raise Unsupported(f"{model.name} reads no images")


def check_options(request: wire.Generate, model: ModelInfo) -> None:
    """Refuse what the types of the wire let through, but the model cannot do.

    Raises:
        InvalidRequest: names the field, its value, and what was expected.
        Unsupported: the model does not generate at all.
    """
    if not model.can_generate:
        raise Unsupported(f"{model.name} makes embeddings, it does not generate text")
    for token in request.logit_bias:
        if token >= model.n_vocab:
            limit = f"a token id from 0 to {model.n_vocab - 1}"
            raise InvalidRequest(f"logit_bias[{token}]", token, limit)
    if request.logprobs is not None and request.logprobs > model.n_vocab:
        limit = f"at most {model.n_vocab}, the vocabulary"
        raise InvalidRequest("logprobs", request.logprobs, limit)
    if request.grammar is not None and request.json_schema is not None:
        raise InvalidRequest("json_schema", "given beside a grammar", "one of the two")
    _check_adapters(request, model)
    # Where the text ends for llama.cpp, it would not end for us.
    for index, stop in enumerate(request.stop):
        _check_no_nul(f"stop[{index}]", stop)
    for index, breaker in enumerate(request.dry_breakers):
        _check_no_nul(f"dry_breakers[{index}]", breaker)
    _check_no_nul("grammar", request.grammar or "")
    _check_no_nul("json_schema", request.json_schema or "")


def _check_adapters(request: wire.Generate, model: ModelInfo) -> None:
    known = ", ".join(model.adapters) or "none: the daemon was given no adapters"
    for index, adapter in enumerate(request.adapters):
        field = f"adapters[{index}].name"
        _check_no_nul(field, adapter.name)
        if adapter.name not in model.adapters:
            raise InvalidRequest(field, adapter.name, f"a name that is known ({known})")
    for name, group in groupby(sorted(adapter.name for adapter in request.adapters)):
        if len(list(group)) > 1:
            raise InvalidRequest("adapters", f"{name} more than once", "each name at most once")


def _check_no_nul(field: str, text: str) -> None:
    if "\0" in text:
        at = text.index("\0")
        raise InvalidRequest(field, f"text with NUL at character {at}", "text without NUL")


def options_of(
    request: wire.Generate, seed: int, index: int = 0, constraint: object | None = None
) -> Options:
    """Return what a request asks for in its completion `index`, once it has been checked."""
    return Options(
        sampling=Sampling(
            temperature=request.temperature,
            dynatemp_range=request.dynatemp_range,
            dynatemp_exponent=request.dynatemp_exponent,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            typical_p=request.typical_p,
            top_n_sigma=request.top_n_sigma,
            xtc_probability=request.xtc_probability,
            xtc_threshold=request.xtc_threshold,
            repeat_penalty=request.repeat_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            penalty_last_n=request.penalty_last_n,
            dry_multiplier=request.dry_multiplier,
            dry_base=request.dry_base,
            dry_allowed_length=request.dry_allowed_length,
            dry_last_n=request.dry_last_n,
            dry_breakers=request.dry_breakers,
            mirostat=request.mirostat,
            mirostat_tau=request.mirostat_tau,
            mirostat_eta=request.mirostat_eta,
            logit_bias=_biases(request),
            ignore_end=request.ignore_end,
            seed=(seed + index) % N_SEEDS,
            n_logprobs=request.logprobs,
            constraint=constraint,
        ),
        max_tokens=request.max_tokens,
        stops=tuple(request.stop),
        n_keep=request.n_keep,
        truncate=request.truncate,
        shift=request.shift,
        adapters=_adapters(request),
        cache_scope=request.cache_scope,
        priority=request.priority,
        wants_progress=request.return_progress,
    )


def _biases(request: wire.Generate) -> tuple[tuple[int, float], ...]:
    return tuple(
        (token, float("-inf") if bias == BAN else bias)
        for token, bias in sorted(request.logit_bias.items())
    )


def _adapters(request: wire.Generate) -> Adapters:
    wanted = sorted((adapter.name, adapter.scale) for adapter in request.adapters)
    return tuple(Adapter(name, scale) for name, scale in wanted if scale != 0.0)
