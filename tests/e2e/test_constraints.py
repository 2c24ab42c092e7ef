"""Grammars and JSON schemas: obeyed, or refused in time; never a way to harm anybody."""

import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from time import monotonic

import anyio
import pytest

from runnerd.client import Client, RequestFailed, connect
from runnerd_protocol.messages import Failed
from tests.daemon import raw_client, running_daemon
from tests.daemon_process import DaemonProcess
from tests.e2e.asking import GREEDY, IMPATIENCE_S, ask, ask_all, frame, literal, refusal

pytestmark = [pytest.mark.anyio, pytest.mark.llama]

MIB = 2**20
DEEP = 60_000
BAD_GRAMMARS = {
    "nothing": "",
    "a name alone": "root",
    "an undefined rule": "root ::= other",
    "no root": 'start ::= "a"',
    "direct left recursion": 'root ::= root "a" | "a"',
    "indirect left recursion": 'root ::= a\na ::= b "x"\nb ::= a | "y"',
    "an open string": 'root ::= "a',
    "an open bracket": 'root ::= ("a"',
    "an open class": "root ::= [a-z",
    "many open brackets": f'root ::= {"(" * DEEP}"a"{")" * DEEP}',
    "a huge repetition": 'root ::= "a"{1000000000}',
    "repetitions of repetitions": 'root ::= (("a" "b"?){1000} "c"){1000000}',
    "optional repetitions": 'root ::= (("a"{0,1000}){0,1000}){0,1000}',
    "very many rules": "root ::= r0\n"
    + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(200_000)),
    "very long": f'root ::= "{"a" * 900_000}"',
    "a nul": 'root ::= "a\0b"',
    "no text": "\x01\x02\x03",
    "an impossible escape": 'root ::= "\\q"',
    "bounds the wrong way round": 'root ::= "a"{5,2}',
}
BAD_SCHEMAS: dict[str, object] = {
    "a number": 7,
    "a list": [],
    "an unknown type": {"type": "nothing"},
    "a reference to itself": {"$ref": "#"},
    "a reference to nowhere": {"$ref": "#/definitions/nobody"},
    "a reference to the network": {"$ref": "http://127.0.0.1:9/schema.json"},
    "a reference to a file": {"$ref": "file:///etc/passwd"},
    "references in a circle": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "very many items": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    "very long strings": {"type": "string", "minLength": 10**9},
    "a huge enum": {"enum": [*range(100_000)]},
    "a pattern that explodes": {"type": "string", "pattern": f"^{'(a+)+' * 200}$"},
    "a pattern that is none": {"type": "string", "pattern": "^(a$"},
}


def deep_schema(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth


NO_SCHEMAS = {
    "nothing": "",
    "an open bracket": "{",
    "no JSON": "nonsense",
    "no end": '{"type": "object"',
    "no JSON number": "NaN",
    "very deep": deep_schema(15_000),  # as many as a field holds
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


async def refused_in_time(daemon: DaemonProcess, client: Client, **options: object) -> Failed:
    """Ask for what is malicious: it is refused soon, and takes no memory."""
    before, started_at = daemon.private_bytes, monotonic()
    failed = await refusal(client, "x", max_tokens=8, **options)
    assert monotonic() - started_at < IMPATIENCE_S + 1.0  # of which a second is this machine's
    assert daemon.private_bytes < before + 100 * MIB
    return failed


@pytest.mark.parametrize("kind", BAD_GRAMMARS)
async def test_a_bad_grammar_is_refused_in_time(smollm2: DaemonProcess, kind: str) -> None:
    async with connect(smollm2.path) as client:
        failed = await refused_in_time(smollm2, client, grammar=BAD_GRAMMARS[kind])
        assert failed.code in ("bad_grammar", "invalid_request"), failed
        assert failed.message
        done = await ask(client, "say", grammar=literal("still here"))
        assert done.text == "still here"


@pytest.mark.parametrize("kind", BAD_SCHEMAS)
async def test_a_bad_schema_is_refused_in_time(smollm2: DaemonProcess, kind: str) -> None:
    async with connect(smollm2.path) as client:
        text = json.dumps(BAD_SCHEMAS[kind])
        failed = await refused_in_time(smollm2, client, json_schema=text)
        assert failed.code == "bad_grammar", failed
        assert failed.message
        assert (await ask(client, "x", max_tokens=2)).finished.n_generated == 2


@pytest.mark.parametrize("kind", NO_SCHEMAS)
async def test_what_is_no_schema_is_refused_in_time(smollm2: DaemonProcess, kind: str) -> None:
    text = NO_SCHEMAS[kind]
    async with connect(smollm2.path) as client:
        failed = await refused_in_time(smollm2, client, json_schema=text)
        assert failed.code in ("bad_grammar", "invalid_request"), failed
        assert (await ask(client, "x", max_tokens=2)).finished.n_generated == 2


async def test_a_grammar_larger_than_a_field_may_be_is_refused_by_its_field() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(frame(grammar="#" * (10 * MIB)))
        failed = await client.receive_a(Failed)
        assert (failed.code, failed.details["field"]) == ("invalid_request", "grammar")


async def test_a_grammar_beside_a_schema_is_refused(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        failed = await refusal(client, "x", grammar=literal("a"), json_schema='{"type": "string"}')
        assert failed.code == "invalid_request"


async def test_streams_go_on_while_bad_grammars_are_looked_at(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client, connect(smollm2.path) as other:
        async with client.generate("Once upon", max_tokens=100, ignore_end=True) as stream:
            await anext(stream)
            async with anyio.create_task_group() as tasks:

                async def bother(grammar: str) -> None:
                    with pytest.raises(RequestFailed):
                        await other.complete("x", grammar=grammar, max_tokens=4)

                for grammar in BAD_GRAMMARS.values():
                    tasks.start_soon(bother, grammar)
                done = await stream.completion()
        assert done.finished.n_generated == 100
        assert done.finished.timings.itl_p95_ms < 1000


# --- what is obeyed -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [GREEDY, {"temperature": 1.5, "seed": 3, "top_k": 0}])
async def test_a_schema_is_obeyed_whatever_the_model_would_say(
    smollm2: DaemonProcess, options: Mapping[str, object]
) -> None:
    async with connect(smollm2.path) as client:
        asks = [
            (f"Describe person {i}.", {"json_schema": json.dumps(SCHEMA), **options})
            for i in range(4)
        ]
        for answer in await ask_all(client, asks):
            assert answer.finished.reason == "stop"
            value = json.loads(answer.text)
            assert set(value) == {"name", "age", "tags"}
            assert 0 <= value["age"] <= 150
            assert len(value["name"]) <= 20
            assert set(value["tags"]) <= {"kind", "tall"}


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "naïve 日本語 👩‍👩‍👧‍👦",
        'quotes " and \\ backslashes',
        "two\nlines",
        "<|im_end|> as a user may write it",
        "x" * 200,
    ],
)
async def test_a_literal_comes_whole_and_ends(smollm2: DaemonProcess, text: str) -> None:
    async with connect(smollm2.path) as client:
        for options in (GREEDY, {"temperature": 2.0, "seed": 1}):
            answer = await ask(client, "Say it.", grammar=literal(text), **options)
            assert (answer.text, answer.finished.reason) == (text, "stop")


async def test_a_grammar_allows_what_other_options_leave(smollm2: DaemonProcess) -> None:
    """The choices of a grammar outlive every filter: somebody is always left to draw."""
    grammar = 'root ::= ("yes" | "no" | "maybe") "."'
    filters: list[Mapping[str, object]] = [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "typical_p": 0.1},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"temperature": 1.0, "top_n_sigma": 0.1},
        {"temperature": 1.0, "mirostat": 1},
        {"temperature": 1.0, "mirostat": 2},
        {"temperature": 0.0, "repeat_penalty": 1.8, "dry_multiplier": 2.0},
        {"temperature": 100.0},
    ]
    async with connect(smollm2.path) as client:
        for options in filters:
            answer = await ask(client, "Will it rain?", grammar=grammar, seed=5, **options)
            assert answer.text in ("yes.", "no.", "maybe."), options


async def test_side_by_side_constrained_texts_are_what_they_are_alone(
    smollm2: DaemonProcess,
) -> None:
    asks: list[tuple[str, Mapping[str, object]]] = [
        ("Pick one.", {"grammar": f'root ::= "{i}: " [a-z]{{5,12}}', **GREEDY}) for i in range(6)
    ]
    async with connect(smollm2.path) as client:
        together = await ask_all(client, list(asks))
        for (prompt, options), answer in zip(asks, together, strict=True):
            alone = await ask(client, prompt, cache_scope="alone", **options)
            assert alone.text == answer.text


async def test_blanks_in_json_do_not_go_on_for_ever(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client:
        blanks = [
            token
            for text in ("\n", " ", "  ", "    ", "\t", "\n\n", " \n")
            for token in await client.tokenize(text, add_bos=False)
        ]
        bias = dict.fromkeys(blanks, 100.0)
        options = {"json_schema": json.dumps(SCHEMA), "logit_bias": bias, "temperature": 1.0}
        answers = await ask_all(
            client, [(f"{i}", {**options, "max_tokens": 400}) for i in range(4)]
        )
        for answer in answers:
            outside = "x".join(answer.text.split('"')[::2])
            runs = re.split(r"\S+", outside)
            assert max(map(len, runs)) <= 21, answer.text  # a line and an indentation
        await smollm2.has_all_slots()


async def test_a_grammar_without_an_end_ends_at_the_limit(smollm2: DaemonProcess) -> None:
    async with connect(smollm2.path) as client, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                client.generate("x", grammar='root ::= "a"+', shift=True, **GREEDY)
            )
            for _ in range(4)
        ]
        for stream in streams:
            await anext(stream)
        limited = await ask(client, "x", grammar='root ::= "a" root', max_tokens=64)
        assert limited.finished.reason in ("length", "stop")
        for stream in streams:
            assert stream.finished is None


async def test_where_only_the_end_is_left_it_comes_though_it_is_ignored(
    smollm2: DaemonProcess,
) -> None:
    async with (
        running_daemon() as daemon,
        connect(smollm2.path) as client,
        connect(daemon.path) as other,
    ):
        for asked in (client, other):
            answer = await ask(asked, "x", grammar=literal("a"), ignore_end=True)
            assert (answer.text, answer.finished.reason) == ("a", "stop")
        nothing = await ask(client, "x", grammar="root ::= ")
        assert (nothing.text, nothing.finished.reason) == ("", "stop")
        await smollm2.has_all_slots()


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": 'root ::= (("a"{1000}){1000}){1000}'},
        {"json_schema": '{"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}'},
    ],
)
async def test_a_text_that_would_hardly_ever_end_is_begun_and_can_be_left(
    smollm2: DaemonProcess, options: Mapping[str, object]
) -> None:
    before = smollm2.private_bytes
    async with connect(smollm2.path) as client:
        answer = await ask(client, "x", max_tokens=20, **options)
        assert set(answer.text) <= {"a", '"'}
        assert answer.finished.reason == "length"
        assert smollm2.private_bytes < before + 100 * MIB
        await smollm2.has_all_slots()
