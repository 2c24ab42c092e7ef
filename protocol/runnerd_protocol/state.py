"""What a daemon tells of itself, and of the connection."""

from typing import Literal

from msgspec import Struct

from runnerd_protocol.memory import Memory
from runnerd_protocol.prompts import DaemonState, Message, Pooling, RequestId

SlotState = Literal["idle", "prompt", "generating", "paused", "awaiting_media"]


class Welcome(Message, frozen=True, tag="welcome"):
    """The answer to `Hello`: the version spoken from here on, and the largest frame."""

    version: int
    max_frame_bytes: int
    server: str = ""


class SlotStatus(Struct, frozen=True, omit_defaults=True):
    """A slot and the request that it works for; idle: none, and `n_cached` inputs are kept.

    `client_request_id` is the client's number for it. `n_cached` inputs of the prompt were there
    already, `n_evaluated` are there since. `waiting_s` is the time that it was queued before it
    got the slot, `age_s` since then.
    """

    slot_id: int
    state: SlotState
    client_request_id: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_evaluated: int = 0
    n_generated: int = 0
    waiting_s: float = 0.0
    age_s: float = 0.0


class Status(Message, frozen=True, tag="status"):
    """How the daemon is doing. Counters run from its start.

    `load_fraction` is how far `load_phase` is; each phase begins anew. `step_age_s` is the age
    of the forward pass or the encoding in progress, the older one; 0 when there is none.
    `tokens_per_s` covers the last few seconds. `resident_bytes` is the process's memory.
    Of `n_images` that came with requests `n_images_encoded` had to be encoded, in `encode_s`;
    `n_images_decoded` counts files, some of them more than once. `image_store_bytes` is the memory
    of the files that are kept, `image_store_bytes_in_use` of those that requests need.
    `stalled` says what takes too long (step, encode), else it is empty. `error` is why the daemon
    has failed, or what has gone wrong last, `error_code` of what kind that is. `memory` is there
    with the last word of a load that ran out of memory. `oldest_wait_s` is how long the request
    that is next has waited, for the model or for a slot.
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
    n_cached_tokens: int = 0
    n_cancelled: int = 0
    n_timed_out: int = 0
    n_suspended: int = 0
    n_shifts: int = 0
    n_embedded: int = 0
    n_checkpoints: int = 0
    checkpoint_bytes: int = 0
    n_generated_limit: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sampling_s: float = 0.0
    n_embeds: int = 0
    n_embeds_failed: int = 0
    n_images: int = 0
    n_images_encoded: int = 0
    image_cache_bytes: int = 0
    encode_s: float = 0.0
    n_images_decoded: int = 0
    image_store_bytes: int = 0
    image_store_bytes_in_use: int = 0
    slots: list[SlotStatus] = []
    stalled: str = ""
    error: str = ""
    error_code: str = ""
    memory: Memory | None = None
    oldest_wait_s: float = 0.0


class Model(Message, frozen=True, tag="model"):
    """What is loaded. `chat_template` is the model's own Jinja text, empty if it has none.

    `bos_token` and `eos_token` are what it means by that. The daemon puts `bos_token` before a
    prompt only where `adds_bos` is set. `n_image_rows` is the most inputs that an image takes;
    0: the model reads no images.
    """

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
    adapters: list[str] = []
    can_generate: bool = True
    n_embd: int = 0
    n_embed: int = 0
    poolings: list[Pooling] = []
    eos_token: int | None = None
    adds_bos: bool = True
    n_image_rows: int = 0
    n_batch: int = 0
    n_ubatch: int = 0


class ProtocolError(Message, frozen=True, tag="protocol_error"):
    """The peer broke the protocol; with `fatal` the connection is closed after it."""

    code: str
    message: str
    fatal: bool = True
    details: dict[str, int | float | str | None] = {}
