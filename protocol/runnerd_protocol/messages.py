"""All messages, as tagged msgspec structs: the one place to import them from.

On the wire a message is a MessagePack map whose `type` names it. A field equal to its
default may be left out; an unknown field is ignored; a new field always has a default.
Bounds are part of the types: decoding checks them, so NaN and infinities never pass.
"""

from runnerd_protocol.memory import (
    DeviceKind,
    DeviceMemory,
    FailedAllocation,
    KVType,
    LayerMemory,
    Memory,
    MemoryReport,
    Plan,
)
from runnerd_protocol.prompts import (
    MAX_MEDIA,
    ContentHash,
    DaemonState,
    FinishReason,
    MediaPart,
    Message,
    Part,
    Pooling,
    Prompt,
    RequestId,
    TextPart,
    TokenId,
    TokensPart,
)
from runnerd_protocol.replies import (
    Accepted,
    Choice,
    Delta,
    Embeddings,
    Failed,
    Finished,
    MediaWanted,
    PromptProgress,
    Text,
    Timings,
    TokenLogprobs,
    Tokens,
    TopLogprob,
)
from runnerd_protocol.requests import (
    Adapter,
    Bias,
    Breaker,
    Cancel,
    Detokenize,
    Embed,
    Generate,
    GetModel,
    GetStatus,
    Hello,
    Media,
    Name,
    Priority,
    Seconds,
    StopString,
    Subscribe,
    Tokenize,
)
from runnerd_protocol.state import Model, ProtocolError, SlotState, SlotStatus, Status, Welcome

__all__ = [
    "MAX_MEDIA",
    "PROTOCOL_VERSION",
    "Accepted",
    "Adapter",
    "Bias",
    "Breaker",
    "Cancel",
    "Choice",
    "ClientMessage",
    "ContentHash",
    "DaemonMessage",
    "DaemonState",
    "Delta",
    "Detokenize",
    "DeviceKind",
    "DeviceMemory",
    "Embed",
    "Embeddings",
    "Failed",
    "FailedAllocation",
    "FinishReason",
    "Finished",
    "Generate",
    "GetModel",
    "GetStatus",
    "Hello",
    "KVType",
    "LayerMemory",
    "Media",
    "MediaPart",
    "MediaWanted",
    "Memory",
    "MemoryReport",
    "Message",
    "Model",
    "Name",
    "Part",
    "Plan",
    "Pooling",
    "Priority",
    "Prompt",
    "PromptProgress",
    "ProtocolError",
    "RequestId",
    "Seconds",
    "SlotState",
    "SlotStatus",
    "Status",
    "StopString",
    "Subscribe",
    "Text",
    "TextPart",
    "Timings",
    "TokenId",
    "TokenLogprobs",
    "Tokenize",
    "Tokens",
    "TokensPart",
    "TopLogprob",
    "Welcome",
]

PROTOCOL_VERSION = 1

ClientMessage = (
    Hello
    | Generate
    | Media
    | Embed
    | Tokenize
    | Detokenize
    | Cancel
    | GetStatus
    | Subscribe
    | GetModel
    | Plan
    | ProtocolError
)
DaemonMessage = (
    Welcome
    | Accepted
    | MediaWanted
    | PromptProgress
    | Delta
    | Finished
    | Failed
    | Embeddings
    | Tokens
    | Text
    | Status
    | Model
    | MemoryReport
    | ProtocolError
)
