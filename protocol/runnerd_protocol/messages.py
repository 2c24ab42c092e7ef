"""The messages, as tagged msgspec structs.

On the wire a message is a MessagePack map whose `type` names it. A field equal to its
default may be left out; an unknown field is ignored; a new field always has a default.
Bounds are part of the types: decoding checks them, so NaN and infinities never pass.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

PROTOCOL_VERSION = 1

RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=4096)]

FinishReason = Literal["stop", "stop_sequence", "length", "context", "cancelled"]
DaemonState = Literal["starting", "loading", "ready", "stalled", "draining", "stopped", "failed"]


class Message(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """What every message is: frozen, tagged by `type`, defaults left out."""


# --- prompts -------------------------------------------------------------------------------


class TextPart(Message, frozen=True, tag="text"):
    """Text; with `special` set, names of special tokens in it become those tokens."""

    text: str
    special: bool = False


class TokensPart(Message, frozen=True, tag="tokens"):
    """Token ids, taken as they are."""

    tokens: list[TokenId]


Part = TextPart | TokensPart
Prompt = str | list[Part]


# --- client to daemon ----------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """Open a connection: the versions the client speaks, both ends included."""

    min_version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    max_version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    client: Annotated[str, Meta(max_length=256)] = ""


class Generate(Message, frozen=True, tag="generate"):
    """Complete a prompt. A bare string is one plain text part.

    `max_tokens` absent: until the context ends; 0: evaluate the prompt only.
    `temperature` 0 picks the likeliest token. `top_k` 0, `top_p` 1, `min_p` 0,
    `repeat_penalty` 1 and the two other penalties at 0 are off.
    `n_keep` inputs at the start survive truncation and shifts; negative: the whole prompt.
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


class Tokenize(Message, frozen=True, tag="tokenize"):
    """Turn a prompt into token ids, as `Generate` would."""

    request_id: RequestId
    prompt: Prompt
    add_bos: bool = True


class Detokenize(Message, frozen=True, tag="detokenize"):
    """Turn token ids into text; bytes that are no character become U+FFFD."""

    request_id: RequestId
    tokens: list[TokenId]


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


# --- daemon to client ----------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    """The answer to `Hello`: the version spoken from here on, and the largest frame."""

    version: int
    max_frame_bytes: int
    server: str = ""


class Accepted(Message, frozen=True, tag="accepted"):
    """A `Generate` is taken; exactly one `Finished` or `Failed` will follow."""

    request_id: RequestId
    n_ahead: int = 0
    state: DaemonState = "ready"
    load_fraction: float = 1.0


class Delta(Message, frozen=True, tag="delta"):
    """New text. `n_tokens` were sampled since the last one; their ids follow if asked for."""

    request_id: RequestId
    text: str
    n_tokens: int = 1
    tokens: list[int] = []


class Timings(Struct, frozen=True, omit_defaults=True):
    """Where a request's time went, in milliseconds.

    `queue_ms` until the first step took it, `ttft_ms` from arrival to the first token,
    `itl_*` gaps between later tokens, `total_ms` from arrival to the end.
    """

    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    itl_p50_ms: float = 0.0
    itl_p95_ms: float = 0.0
    total_ms: float = 0.0


class Finished(Message, frozen=True, tag="finished"):
    """A request is complete.

    `n_text_bytes` is the UTF-8 length of all its deltas: what lets a client know that it
    has seen everything. `n_cached` prompt inputs were not evaluated again.
    """

    request_id: RequestId
    reason: FinishReason
    stop_sequence: str | None = None
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_text_bytes: int = 0
    n_keep: int = 0
    n_truncated: int = 0
    n_shifts: int = 0
    n_shifted: int = 0
    seed: int = 0
    timings: Timings = Timings()


class Failed(Message, frozen=True, tag="failed"):
    """A request cannot be served; `details` holds the numbers that `message` speaks of."""

    request_id: RequestId
    code: str
    message: str
    retryable: bool = False
    details: dict[str, int | float | str | None] = {}


class Tokens(Message, frozen=True, tag="tokens"):
    """The answer to `Tokenize`."""

    request_id: RequestId
    tokens: list[int]


class Text(Message, frozen=True, tag="text"):
    """The answer to `Detokenize`."""

    request_id: RequestId
    text: str


class Status(Message, frozen=True, tag="status"):
    """How the daemon is doing. Counters run from its start.

    `load_fraction` is how far `load_phase` is; each phase begins anew. `step_age_s` is the age
    of the forward pass in progress, 0 when there is none.
    `tokens_per_s` covers the last few seconds. `resident_bytes` is the process's memory.
    """

    request_id: RequestId
    state: DaemonState
    last: bool = False
    load_phase: str = ""
    load_fraction: float = 0.0
    model: str = ""
    pid: int = 0
    uptime_s: float = 0.0
    n_slots: int = 0
    n_slots_free: int = 0
    n_waiting: int = 0
    max_queue: int = 0
    n_connections: int = 0
    n_ctx: int = 0
    n_batch: int = 0
    n_cells: int = 0
    n_cells_used: int = 0
    n_steps: int = 0
    n_requests: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_generated_tokens: int = 0
    tokens_per_s: float = 0.0
    step_ms: float = 0.0
    step_age_s: float = 0.0
    resident_bytes: int = 0


class Model(Message, frozen=True, tag="model"):
    """What is loaded. `chat_template` is the model's own Jinja text, empty if it has none."""

    request_id: RequestId
    name: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_params: int = 0
    size_bytes: int = 0
    architecture: str = ""
    chat_template: str = ""
    bos_token: int | None = None
    end_tokens: list[int] = []


class ProtocolError(Message, frozen=True, tag="protocol_error"):
    """The peer broke the protocol; with `fatal` the connection is closed after it."""

    code: str
    message: str
    fatal: bool = True
    details: dict[str, int | float | str | None] = {}


ClientMessage = (
    Hello
    | Generate
    | Tokenize
    | Detokenize
    | Cancel
    | GetStatus
    | Subscribe
    | GetModel
    | ProtocolError
)
DaemonMessage = (
    Welcome | Accepted | Delta | Finished | Failed | Tokens | Text | Status | Model | ProtocolError
)
