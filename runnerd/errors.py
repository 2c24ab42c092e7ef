"""Errors, by who must act on them.

A `RequestError` goes to one client on one request. A `ConfigError` or `LoadError` ends the
start. `NoKVSlot` is met by planning a smaller step. `EngineBroken` ends the process.
"""

Details = dict[str, int | float | str | None]

MAX_VALUE_CHARS = 64  # of a value at fault that are told: as the protocol promises


class RunnerdError(Exception):
    """Base of the errors that this package raises on purpose."""


class ConfigError(RunnerdError):
    """A setting is wrong; nothing is served."""

    exit_code = 78


class LoadError(RunnerdError):
    """The model cannot be loaded."""

    exit_code = 65


class ModelMissing(LoadError):
    """There is no readable model file at the path."""

    exit_code = 66


class BadModel(LoadError):
    """The file is not a model that can be run: wrong format, cut short, unsupported."""


class OutOfMemory(LoadError):
    """The model or its context does not fit in memory.

    `plan` is the MemoryPlan of the load, where one could be made; `failed` the FailedAllocation,
    where there is no plan to say so.
    """

    exit_code = 71

    def __init__(self, message: str, plan: object = None, *, failed: object = None) -> None:
        super().__init__(message)
        self.plan = plan
        self.failed = failed


class LoadCancelled(LoadError):
    """The load was told to stop."""

    exit_code = 0


class RequestError(RunnerdError):
    """This request cannot be served; the connection and everybody else go on.

    Each kind has the `code` that the client is told.
    """

    code: str
    retryable = False

    def __init__(self, message: str, **details: int | float | str | None) -> None:
        super().__init__(message)
        self.details: Details = details


class InvalidRequest(RequestError):
    """A field is out of range or makes no sense.

    `field` is a path in the request (`prompt[0].tokens[3]`), `limit` what was expected there.
    """

    code = "invalid_request"

    def __init__(self, field: str, value: object, limit: str) -> None:
        printed = str(value)[:MAX_VALUE_CHARS]
        message = f"{field} is {printed}, expected {limit}"
        super().__init__(message, field=field, value=printed, limit=limit)


class InvalidMedia(RequestError):
    """An image cannot be read, or is beyond the limits.

    `field` is its part (`prompt[2]`), `index` its number among the request's images, from 0;
    `value` what is the matter with it, `limit` what was expected.
    """

    code = "invalid_media"

    def __init__(self, fact: str, limit: str, *, index: int = 0, field: str = "") -> None:
        super().__init__(
            f"image {index}: {fact}, expected {limit}",
            field=field,
            index=index,
            value=fact,
            limit=limit,
        )
        self.fact = fact
        self.limit = limit

    def at(self, index: int, field: str) -> "InvalidMedia":
        """Return the same error, of the `index`-th image of a request."""
        return InvalidMedia(self.fact, self.limit, index=index, field=field)


class PromptTooLong(RequestError):
    """The prompt leaves no room to generate."""

    code = "prompt_too_long"


class BadGrammar(RequestError):
    """A grammar or JSON schema cannot be compiled, or is beyond the limits."""

    code = "bad_grammar"


class QueueTimeout(RequestError):
    """The request waited longer than its `queue_timeout_s`."""

    code = "queue_timeout"
    retryable = True


class Cancelled(RequestError):
    """The client wants no answer any more, and the request has no other way to say so."""

    code = "cancelled"


class Unsupported(RequestError):
    """The model that is loaded cannot do this."""

    code = "unsupported"


class Overloaded(RequestError):
    """The queue is full."""

    code = "overloaded"
    retryable = True


class ShuttingDown(RequestError):
    """The daemon is draining."""

    code = "shutting_down"
    retryable = True


class LoadFailed(RequestError):
    """The model this request waited for could not be loaded."""

    code = "load_failed"


class EngineFailed(RequestError):
    """The engine could not complete this request."""

    code = "engine_failed"


class Internal(RequestError):
    """A bug of ours, or a want of memory, has met this request; the log says more."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("an internal error")


class NoKVSlot(RunnerdError):
    """The KV cache has no room for a batch; it is as it was before the call."""


class DecodeAborted(RunnerdError):
    """A decode was stopped before its end; `n_stored` as in `StepResult`."""

    def __init__(self, n_stored: tuple[int | None, ...]) -> None:
        super().__init__("the decode was stopped")
        self.n_stored = n_stored


class EngineBroken(RunnerdError):
    """The model failed; what the KV cache holds is unknown."""
