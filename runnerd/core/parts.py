"""A request's parts, as a tokenizer takes them: checked, and joined where a split says nothing."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from runnerd.core.prompt import ImagePart, Part, TextPart, TokensPart
from runnerd.errors import InvalidRequest


def joined(parts: Sequence[Part], n_vocab: int) -> Iterator[Part]:
    """Yield the parts that hold anything, adjoining texts of one kind as one.

    Raises:
        InvalidRequest: a token id is outside the vocabulary.
    """
    for index, part in enumerate(parts):
        if isinstance(part, TokensPart):
            check_tokens(part.tokens, n_vocab, f"prompt[{index}].tokens")
    for special, run in groupby(filter(_is_filled, parts), _is_special):
        if special is None:
            yield from run
        else:
            texts = (part.text for part in run if isinstance(part, TextPart))
            yield TextPart("".join(texts), special)


def check_tokens(tokens: Sequence[int], n_vocab: int, field: str) -> None:
    """Refuse tokens that are not in the vocabulary; `field` is where the client wrote them.

    Raises:
        InvalidRequest: names the first one.
    """
    if not tokens or 0 <= min(tokens) <= max(tokens) < n_vocab:
        return
    for index, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            raise InvalidRequest(f"{field}[{index}]", token, f"a token id from 0 to {n_vocab - 1}")


def encoded(text: str) -> bytes:
    """Return a prompt's text in UTF-8.

    Raises:
        InvalidRequest: a character is half of a surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as err:
        lone = ascii(text[err.start])
        raise InvalidRequest("prompt", lone, "text without lone surrogates") from err


def _is_filled(part: Part) -> bool:
    match part:
        case TextPart(text):
            return bool(text)
        case TokensPart(tokens):
            return bool(tokens)
        case ImagePart():
            return True


def _is_special(part: Part) -> bool | None:
    return part.special if isinstance(part, TextPart) else None
