"""A token for each byte, four control tokens, and images.

Bytes that no text has mark the begin and the end of an image with pixels.
"""

import re
from collections.abc import Sequence

from runnerd.core.parts import encoded, joined
from runnerd.core.prompt import (
    Group,
    ImagePart,
    Layout,
    Part,
    Prompt,
    TextPart,
    TokensPart,
    media_key,
)
from runnerd.engine.reference.images import Tiling
from runnerd.engine.reference.media import IMAGE, Medium
from runnerd.errors import Unsupported

BOS, END, IM_START, IM_END = range(256, 260)
N_VOCAB = 260
END_TOKENS = (END, IM_END)
SPECIAL = {"<bos>": BOS, "<end>": END, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_SPECIAL_TEXT = re.compile("(" + "|".join([*map(re.escape, SPECIAL), IMAGE]) + ")")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ByteTokenizer:
    """The tokenizer of the reference engine. It holds no state: any thread may use it."""

    def __init__(self, *, non_causal: bool, tiling: Tiling | None = None) -> None:
        self._non_causal = non_causal
        self._tiling = tiling

    def expand(self, parts: Sequence[Part], *, add_bos: bool = True) -> Prompt:
        """See `Tokenizer.expand`. A model without a tiling reads no images."""
        inputs = [BOS] if add_bos else []
        groups: list[Group] = []
        borders: list[int] = []
        for index, part in enumerate(joined(parts, N_VOCAB)):
            match part:
                case TokensPart(tokens):
                    inputs.extend(tokens)
                case TextPart(text, special=True):
                    if index:
                        borders.append(len(inputs))
                    self._expand_special(text, inputs, groups)
                case TextPart(text):
                    inputs.extend(encoded(text))
                case ImagePart() as image:
                    if self._tiling is None:
                        raise Unsupported("the model reads no images")
                    self._tiling.expand(image, inputs, groups)
        layout = Layout(tuple(groups))
        if add_bos and inputs[1:2] == [BOS]:
            inputs, layout = inputs[1:], layout.without(0, 1)
            borders = [border - 1 for border in borders]
        return Prompt(tuple(inputs), layout.groups, tuple(borders))

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return bytes((token,)) if token < BOS else b""

    def is_end(self, token: int) -> bool:
        """See `Tokenizer.is_end`."""
        return token in END_TOKENS

    def _expand_special(self, text: str, inputs: list[int], groups: list[Group]) -> None:
        # A split by a group keeps what it splits at, at the odd places.
        for place, piece in enumerate(_SPECIAL_TEXT.split(text)):
            if place % 2 == 0:
                inputs.extend(encoded(piece))
            elif piece in SPECIAL:
                inputs.append(SPECIAL[piece])
            else:
                medium = Medium.of_name(piece, non_causal=self._non_causal)
                start, stop = len(inputs), len(inputs) + medium.n_rows
                groups.append(Group(start, stop, medium.n_pos, medium.media_id, medium.one_pass))
                inputs.extend(media_key(medium.media_id, row) for row in range(medium.n_rows))
