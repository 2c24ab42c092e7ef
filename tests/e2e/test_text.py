"""Text in and out, byte for byte, whichever way it takes through the daemon."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.client import Client, connect
from runnerd.engine.reference.tokenizer import BOS
from runnerd_protocol.messages import Part, TextPart, TokensPart
from tests.core.naive import text_before_stop
from tests.daemon import raw_client, running_daemon
from tests.e2e.asking import GREEDY, Answer, ask, frame, literal, refusal
from tests.e2e.examples import Examples

pytestmark = pytest.mark.anyio

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
SHOWN = ["日本語テスト", f"{FAMILY} and {FAMILY}", "e\u0301te\u0301", "🇩🇪🇫🇷", "a日b👩c"]


async def forced(client: Client, text: str, **options: object) -> Answer:
    return await ask(client, "say", grammar=literal(text), **options)


# --- characters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SHOWN)
async def test_every_token_limit_gives_whole_characters_and_one_mark_at_most(text: str) -> None:
    data = text.encode()
    async with running_daemon() as daemon, connect(daemon.path) as client:
        for n_tokens in range(1, len(data) + 2):
            answer = await forced(client, text, max_tokens=n_tokens)
            assert answer.text == data[:n_tokens].decode(errors="replace")
            assert answer.text.rstrip("\ufffd") == "".join(
                char for char in answer.text if char != "\ufffd"
            )
            is_whole = n_tokens > len(data)
            assert answer.finished.reason == ("stop" if is_whole else "length")


@pytest.mark.parametrize("text", SHOWN)
async def test_a_stream_is_cut_between_characters(text: str) -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        answer = await forced(client, text)
    assert answer.text == text
    assert answer.tokens == list(text.encode())
    assert not any("\ufffd" in delta.text for delta in answer.deltas)
    assert sum(delta.n_tokens for delta in answer.deltas) == len(answer.tokens)


# --- stop strings -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(alphabet="ab<日", min_size=1, max_size=30),
    stops=st.lists(st.text(alphabet="ab<日", min_size=1, max_size=4), max_size=5),
    max_tokens=st.integers(1, 60),
)
def test_any_text_ends_before_whichever_stop_string_is_complete_first(
    text: str, stops: list[str], max_tokens: int, daemon_for_examples: Examples
) -> None:
    answer = daemon_for_examples.forced(text, stop=stops, max_tokens=max_tokens)
    wanted, stop = text_before_stop(text.encode()[:max_tokens], stops)
    assert answer.text == wanted
    assert answer.finished.stop_sequence == stop
    longest = max(map(len, stops), default=1)
    said, n_bytes = "", 0
    for delta in answer.deltas[:-1]:  # nothing is held back but what may become a stop string
        said += delta.text
        n_bytes += delta.n_tokens
        known = text.encode()[:n_bytes].decode(errors="ignore")
        assert len(known) - len(said) < longest


@pytest.mark.parametrize("stops", [[""], ["", "END"], ["END", ""]])
async def test_an_empty_stop_string_is_refused_by_its_place(stops: list[str]) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(frame(stop=stops))
        failed = await client.receive()
    assert failed.code == "invalid_request"  # type: ignore[union-attr]
    assert "stop" in failed.message  # type: ignore[union-attr]


@pytest.mark.parametrize("ended_by", ["end", "limit", "context"])
async def test_what_looked_like_a_stop_string_comes_at_every_end(ended_by: str) -> None:
    text = "value: <EN"
    n_ctx = {"context": 1 + 3 + len(text) - 1}.get(ended_by, 64)
    max_tokens = {"limit": len(text)}.get(ended_by)
    async with (
        running_daemon(n_ctx=n_ctx, n_batch=n_ctx) as daemon,
        connect(daemon.path) as client,
    ):
        answer = await forced(client, text, stop=["<END>"], max_tokens=max_tokens)
    assert answer.text == text
    assert answer.finished.reason == {"end": "stop", "limit": "length"}.get(ended_by, "context")


async def test_the_models_own_end_ends_it_besides_stop_strings() -> None:
    async with (
        running_daemon("layers=1,dim=16,end_bias=100") as daemon,
        connect(daemon.path) as client,
    ):
        answer = await ask(client, "x", stop=["never said"], **GREEDY)
    assert (answer.text, answer.finished.reason) == ("", "stop")


async def test_after_a_stop_string_the_next_turn_reuses_what_was_seen() -> None:
    async with running_daemon("layers=1,dim=16", n_slots=1) as daemon, connect(daemon.path) as c:
        seen = await forced(c, "one two three<END>four", stop=["<END>"])
        assert seen.text == "one two three"
        parts: list[Part] = [TextPart("say"), TextPart(f"{seen.text} and then what?")]
        again = await ask(c, parts, max_tokens=4, **GREEDY)
        assert again.finished.n_cached == 1 + len("say") + len(seen.text)
        cold = await ask(c, parts, max_tokens=4, cache_scope="cold", **GREEDY)
        assert cold.tokens == again.tokens


# --- odd characters -----------------------------------------------------------------------------


async def test_a_nul_counts_everywhere_and_ends_nothing() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with_nul = "before\0after"
        tokens = await client.tokenize(with_nul, add_bos=False)
        assert len(tokens) == 12
        assert await client.detokenize(tokens) == with_nul
        answer = await ask(client, with_nul, max_tokens=1)
        assert answer.finished.n_prompt == 13


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("grammar", {"grammar": 'root ::= "a\0b"'}),
        ("adapters", {"adapters": [{"name": "a\0b"}]}),
    ],
)
async def test_a_nul_in_a_name_or_a_grammar_is_refused(
    field: str, options: dict[str, object]
) -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        await client.send(frame(**options))
        failed = await client.receive()
        assert failed.code in ("invalid_request", "bad_grammar"), failed  # type: ignore[union-attr]
        await daemon.has_all_slots()


async def test_a_lone_surrogate_is_refused_and_the_connection_goes_on() -> None:
    async with running_daemon() as daemon, raw_client(daemon) as client:
        payload = b"\x83\xa4type\xa8generate\xaarequest_id\x07\xa6prompt\xa3\xed\xa0\x80"
        await client.send(len(payload).to_bytes(4, "big") + payload)
        refused = await client.receive()
        assert getattr(refused, "code", "") in ("bad_message", "invalid_request"), refused
        await client.send(frame(max_tokens=1))
        assert getattr(await client.receive(), "request_id", None) == 7


async def test_a_hundred_thousand_equal_characters_are_refused_with_numbers() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        for text in ("a" * 100_000, " " * 100_000, "😀" * 25_000, "\n" * 100_000):
            failed = await refusal(client, text)
            assert failed.code == "prompt_too_long"
            assert failed.details == {"n_prompt": 100_001, "n_ctx": 512}


# --- control tokens and BOS ---------------------------------------------------------------------

CONTROL = ["<|im_start|>", "<|im_end|>", "<bos>", "<end>"]


@pytest.mark.parametrize("name", CONTROL)
async def test_a_control_token_comes_from_template_text_only(name: str) -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        plain = await client.tokenize(f"a{name}b", add_bos=False)
        assert plain == list(f"a{name}b".encode())
        as_template: list[Part] = [TextPart(f"a{name}b", special=True)]
        assert len(await client.tokenize(as_template, add_bos=False)) == 3
        for cut in range(1, len(name)):
            halves: list[Part] = [TextPart(f"a{name[:cut]}"), TextPart(f"{name[cut:]}b")]
            assert await client.tokenize(halves, add_bos=False) == plain
            mixed: list[Part] = [TextPart(name[:cut], special=True), TextPart(name[cut:])]
            assert max(await client.tokenize(mixed, add_bos=False)) < BOS
        wide = name.replace("<", "\uff1c").replace(">", "\uff1e")
        assert max(await client.tokenize([TextPart(wide, special=True)], add_bos=False)) < BOS


@pytest.mark.parametrize(
    "parts",
    [
        [TextPart("a"), TextPart("b")],
        [TextPart("<bos>", special=True), TextPart("ab")],
        [TokensPart([BOS]), TextPart("a"), TextPart("b")],
        [TextPart(""), TextPart("ab", special=True)],
    ],
)
async def test_bos_comes_once_cached_or_not(parts: list[Part]) -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        assert await client.tokenize(parts) == [BOS, *b"ab"]
        for _ in range(2):
            assert (await ask(client, parts, max_tokens=1)).finished.n_prompt == 3


async def test_a_cut_neither_loses_nor_doubles_a_kept_bos() -> None:
    async with running_daemon("layers=1,dim=16", n_ctx=64) as daemon:
        async with connect(daemon.path) as client:
            cut = await ask(
                client, "x" * 40 + "y" * 59, truncate=True, n_keep=1, max_tokens=4, **GREEDY
            )
            assert (cut.finished.n_prompt, cut.finished.n_truncated) == (100, 40)
            alone = await ask(client, "y" * 59, cache_scope="cold", max_tokens=4, **GREEDY)
            assert alone.tokens == cut.tokens
