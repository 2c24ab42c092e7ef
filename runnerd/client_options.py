"""Options of the clients' calls, each with its type: the wire's `Generate`, and what is ours.

They are typed out, so that editors complete them and type checkers check them.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from msgspec import json

from runnerd.streams import OnProgress
from runnerd_protocol.messages import Adapter, Generate, Priority, Prompt


class GenerateOptions(TypedDict, total=False):
    """Options of a generation: the fields of `Generate`, and `on_progress`.

    A `json_schema` may be a dict, and `adapters` one of names and scales.
    """

    max_tokens: int | None
    stop: list[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    seed: int | None
    n_keep: int
    truncate: bool
    shift: bool
    return_tokens: bool
    dynatemp_range: float
    dynatemp_exponent: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    dry_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: dict[int, float]
    ignore_end: bool
    logprobs: int | None
    grammar: str | None
    json_schema: str | Mapping[str, object] | None
    adapters: list[Adapter] | Mapping[str, float]
    cache_scope: str
    n: int
    priority: Priority
    queue_timeout_s: float | None
    timeout_s: float | None
    return_progress: bool
    on_progress: OnProgress | None


class ChatOptions(GenerateOptions, total=False):
    """Options of a chat: those of a generation, and what the template is told besides."""

    tools: Sequence[object] | None
    variables: Mapping[str, object] | None


def take_callback(options: GenerateOptions) -> OnProgress | None:
    """Take `on_progress` out of a generation's options, which then ask for progress."""
    on_progress = options.pop("on_progress", None)
    if on_progress is None:
        return None
    if not callable(on_progress):
        raise TypeError("on_progress cannot be called")
    options.setdefault("return_progress", True)
    return on_progress


def without_template(options: ChatOptions) -> GenerateOptions:
    """Return the options of a chat's generation."""
    options.pop("tools", None)
    options.pop("variables", None)
    return cast("GenerateOptions", options)  # type checkers do not see that they are gone


def request_of(request_id: int, prompt: Prompt, options: GenerateOptions) -> Generate:
    """Return the request that options without a callback ask for."""
    fields: dict[str, object] = {**options}
    schema, adapters = options.get("json_schema"), options.get("adapters")
    if isinstance(schema, Mapping):
        fields["json_schema"] = json.encode(schema).decode()
    if isinstance(adapters, Mapping):
        fields["adapters"] = [Adapter(name, scale) for name, scale in adapters.items()]
    return Generate(request_id, prompt, **fields)  # type: ignore[arg-type]  # the daemon checks
