"""What a daemon answers to a request."""

from msgspec import Struct

from runnerd_protocol.prompts import ContentHash, DaemonState, FinishReason, Message, RequestId


class Accepted(Message, frozen=True, tag="accepted"):
    """A `Generate` is taken; exactly one `Finished` or `Failed` will follow."""

    request_id: RequestId
    n_ahead: int = 0
    state: DaemonState = "ready"
    load_fraction: float = 1.0


class MediaWanted(Message, frozen=True, tag="media_wanted"):
    """Files of a `Generate` that came by their hashes, and are not here: each is to be sent.

    Each in a `Media` of its own, in any order, before the request can begin. Comes after
    `Accepted`, and once.
    """

    request_id: RequestId
    sha256: list[ContentHash]


class PromptProgress(Message, frozen=True, tag="prompt_progress"):
    """How far a prompt is, if asked for: `n_processed` of its `n_prompt` inputs are in the cache.

    `n_cached` of them were there before. While `n_ahead` is not 0 the request waits, and so many
    are before it.
    """

    request_id: RequestId
    n_prompt: int = 0
    n_cached: int = 0
    n_processed: int = 0
    n_ahead: int = 0
    index: int = 0


class TopLogprob(Struct, frozen=True, array_like=True):
    """A token, its log-probability, and the bytes that it adds to a text."""

    token: int
    logprob: float
    data: bytes


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """The token that was picked, and the likeliest ones in its place, descending.

    Log-probabilities are of the raw distribution: before temperature, bias and grammar.
    """

    token: int
    logprob: float
    data: bytes
    top: list[TopLogprob] = []


class Delta(Message, frozen=True, tag="delta"):
    """New text of completion `index`.

    `n_tokens` were sampled since the last one; their ids follow if asked for. `logprobs` are
    those of the tokens whose text is now out: none of what a stop string has cut off.
    """

    request_id: RequestId
    text: str
    n_tokens: int = 1
    tokens: list[int] = []
    index: int = 0
    logprobs: list[TokenLogprobs] = []


class Timings(Struct, frozen=True, omit_defaults=True):
    """Where a request's time went, in milliseconds.

    `queue_ms` until the first step took it, `prefill_ms` from there to the first token,
    `decode_ms` from there to the last, `ttft_ms` from arrival to the first token, `itl_*` gaps
    between later tokens, `sampling_ms` spent on picking its tokens, `total_ms` from arrival to
    the end.
    """

    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    itl_p50_ms: float = 0.0
    itl_p95_ms: float = 0.0
    total_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    sampling_ms: float = 0.0


class Choice(Struct, frozen=True, omit_defaults=True):
    """How one of several completions ended; fields as in `Finished`."""

    reason: FinishReason
    stop_sequence: str | None = None
    n_cached: int = 0
    n_generated: int = 0
    n_text_bytes: int = 0
    n_shifts: int = 0
    n_shifted: int = 0
    n_suspended: int = 0
    seed: int = 0
    timings: Timings = Timings()


class Finished(Message, frozen=True, tag="finished"):
    """A request is complete.

    `n_text_bytes` is the UTF-8 length of all its deltas: what lets a client know that it
    has seen everything. `n_cached` prompt inputs were not evaluated again. `n_suspended` times
    it lost its cells to others and got them back.

    With `n` over 1 `choices` has a line for each; then the counts here are sums, and everything
    else is that of completion 0.
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
    n_suspended: int = 0
    choices: list[Choice] = []


class Failed(Message, frozen=True, tag="failed"):
    """A request cannot be served; `details` holds the numbers that `message` speaks of."""

    request_id: RequestId
    code: str
    message: str
    retryable: bool = False
    details: dict[str, int | float | str | None] = {}


class Embeddings(Message, frozen=True, tag="embeddings"):
    """Embeddings of the inputs from `first` on, in order; `last` with the end of the answer.

    A vector is `n_dims` float32, little-endian, one after the other. `n_tokens` were evaluated
    per input; `truncated` are the indexes of inputs that were cut.
    """

    request_id: RequestId
    vectors: list[bytes]
    n_dims: int
    n_tokens: list[int]
    first: int = 0
    last: bool = True
    truncated: list[int] = []


class Tokens(Message, frozen=True, tag="tokens"):
    """The answer to `Tokenize`."""

    request_id: RequestId
    tokens: list[int]


class Text(Message, frozen=True, tag="text"):
    """The answer to `Detokenize`."""

    request_id: RequestId
    text: str
