"""What a client sends. Bounds are part of the types: decoding checks them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from runnerd_protocol.prompts import Message, Pooling, Prompt, RequestId, TokenId, TokenIds

StopString = Annotated[str, Meta(min_length=1, max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Breaker = Annotated[str, Meta(min_length=1, max_length=64)]
Bias = Annotated[float, Meta(ge=-1000.0, le=1000.0)]
Seconds = Annotated[float, Meta(gt=0.0, le=86400.0)]

Priority = Literal["high", "normal", "low"]


class Hello(Message, frozen=True, tag="hello"):
    """Open a connection: the versions the client speaks, both ends included."""

    min_version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    max_version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    client: Annotated[str, Meta(max_length=256)] = ""


class Adapter(Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter by the name that the daemon gave it, and how much of it to apply."""

    name: Name
    scale: Annotated[float, Meta(ge=-100.0, le=100.0)] = 1.0


class Generate(Message, frozen=True, tag="generate"):
    """Complete a prompt, `n` times. A bare string is one plain text part.

    `max_tokens` absent: until the context ends; 0: evaluate the prompt only.
    `temperature` 0 picks the likeliest token. These are off: `top_k` 0, `top_p` 1, `min_p` 0,
    `typical_p` 1, `top_n_sigma` 0, `xtc_probability` 0, `repeat_penalty` 1 and the two other
    penalties at 0, `dry_multiplier` 0, `mirostat` 0, `dynatemp_range` 0.
    `logit_bias` of -1000 bans a token. `logprobs` asks for those of each token, and of as many
    of the likeliest. `grammar` is GBNF, `json_schema` the text of a schema; one of them at most.
    `n_keep` inputs at the start survive truncation and shifts; negative: the whole prompt.
    Only requests with the same `cache_scope` share cached prefixes.
    """

    request_id: RequestId
    prompt: Prompt
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop: Annotated[list[StopString], Meta(max_length=64)] = []
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.8
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 40
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.95
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.05
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] = 1.0
    frequency_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0
    penalty_last_n: Annotated[int, Meta(ge=0, le=65536)] = 64
    seed: Annotated[int, Meta(ge=0, le=2**32 - 2)] | None = None
    n_keep: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    truncate: bool = False
    shift: bool = False
    return_tokens: bool = False
    dynatemp_range: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    dynatemp_exponent: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    typical_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    top_n_sigma: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    xtc_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    xtc_threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    dry_multiplier: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    dry_base: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.75
    dry_allowed_length: Annotated[int, Meta(ge=1, le=65536)] = 2
    dry_last_n: Annotated[int, Meta(ge=0, le=65536)] = 1024
    dry_breakers: Annotated[tuple[Breaker, ...], Meta(max_length=8)] = ("\n", ":", '"', "*")
    mirostat: Annotated[int, Meta(ge=0, le=2)] = 0
    mirostat_tau: Annotated[float, Meta(ge=0.0, le=100.0)] = 5.0
    mirostat_eta: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=4096)] = {}
    ignore_end: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    grammar: Annotated[str, Meta(max_length=2**20)] | None = None
    json_schema: Annotated[str, Meta(max_length=2**20)] | None = None
    adapters: Annotated[list[Adapter], Meta(max_length=16)] = []
    cache_scope: Annotated[str, Meta(max_length=256)] = ""
    n: Annotated[int, Meta(ge=1, le=64)] = 1
    priority: Priority = "normal"
    queue_timeout_s: Seconds | None = None
    timeout_s: Seconds | None = None
    return_progress: bool = False


class Media(Message, frozen=True, tag="media_data"):
    """The answer to `MediaWanted`: one of the files asked for. One that was not is ignored."""

    request_id: RequestId
    data: bytes


class Embed(Message, frozen=True, tag="embed"):
    """Turn each input into an embedding; with `normalize`, of length 1.

    With `truncate` an input that is too long loses its end; else the request fails.
    """

    request_id: RequestId
    inputs: Annotated[list[Prompt], Meta(max_length=65536)]
    pooling: Pooling = "model"
    normalize: bool = True
    truncate: bool = False


class Tokenize(Message, frozen=True, tag="tokenize"):
    """Turn a prompt into token ids, as `Generate` would."""

    request_id: RequestId
    prompt: Prompt
    add_bos: bool = True


class Detokenize(Message, frozen=True, tag="detokenize"):
    """Turn token ids into text; bytes that are no character become U+FFFD."""

    request_id: RequestId
    tokens: TokenIds


class Cancel(Message, frozen=True, tag="cancel"):
    """End one of this connection's requests; an unknown id is ignored."""

    request_id: RequestId


class GetStatus(Message, frozen=True, tag="get_status"):
    """Ask for one `Status`."""

    request_id: RequestId


class Subscribe(Message, frozen=True, tag="subscribe"):
    """Ask for a `Status` now, at each change of state or load progress, and at an interval.

    Ends by `Cancel`, which is answered with a `Status` marked `last`.
    """

    request_id: RequestId
    interval_s: Annotated[float, Meta(ge=0.05, le=3600.0)] = 1.0


class GetModel(Message, frozen=True, tag="get_model"):
    """Ask for a `Model`; answered when the model is loaded."""

    request_id: RequestId
