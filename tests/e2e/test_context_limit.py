"""What happens at the context's end: refused, cut, shifted, or over; and always told."""

import pytest

from runnerd.client import connect
from runnerd_protocol.messages import Part, TextPart, TokensPart
from tests.daemon import running_daemon
from tests.e2e.asking import GREEDY, ask, ask_all, cold, literal, refusal

pytestmark = pytest.mark.anyio

N_CTX = 256
MODEL = "layers=1,dim=16,end_bias=-100"
NO_SHIFT = f"{MODEL},shift=0"


# --- prompts too long ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_slots", [1, 3])
@pytest.mark.parametrize("n_prompt", [N_CTX + 1, 2 * N_CTX, 40 * N_CTX])
async def test_a_prompt_too_long_is_refused_before_any_of_it_is_evaluated(
    n_prompt: int, n_slots: int
) -> None:
    async with running_daemon(MODEL, n_ctx=N_CTX, n_slots=n_slots) as daemon:
        async with connect(daemon.path) as client:
            failed = await refusal(client, "x" * (n_prompt - 1))
            status = await client.status()
            assert failed.code == "prompt_too_long"
            assert failed.details == {"n_prompt": n_prompt, "n_ctx": N_CTX}
            assert (status.n_steps, status.n_prompt_tokens) == (0, 0)
            assert status.n_ctx == (await client.model()).n_ctx == N_CTX


@pytest.mark.parametrize("n_prompt", [N_CTX + 1, 2 * N_CTX, 40 * N_CTX])
async def test_a_prompt_that_is_cut_is_the_same_as_its_kept_ends(n_prompt: int) -> None:
    n_keep, max_tokens = 20, 16
    text = "".join(chr(ord("a") + n % 23) for n in range(n_prompt - 1))
    async with running_daemon(MODEL, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        cut = await ask(client, text, truncate=True, n_keep=n_keep, max_tokens=max_tokens, **GREEDY)
        n_left = N_CTX - max_tokens
        assert cut.finished.n_truncated == n_prompt - n_left
        assert cut.finished.n_prompt == n_prompt
        assert cut.finished.n_keep == n_keep
        kept = text[: n_keep - 1] + text[-(n_left - n_keep) :]  # BOS is kept too
        alike = await cold(daemon.path, kept, max_tokens=max_tokens, **GREEDY)
        assert alike.finished.n_prompt == n_left
        assert cut.text == alike.text


async def test_a_prompt_that_fits_is_not_cut_though_it_may_be() -> None:
    async with running_daemon(MODEL, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        whole = await ask(client, "x" * (N_CTX - 1), truncate=True, max_tokens=1, **GREEDY)
    assert (whole.finished.n_truncated, whole.finished.n_prompt) == (0, N_CTX)


# --- the end of the context ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_generated", "reason"),
    [
        (8, 64, 64, "length"),
        (8, None, N_CTX - 8 + 1, "context"),
        (N_CTX, None, 1, "context"),
        (N_CTX, 1, 1, "length"),
        (N_CTX - 1, None, 2, "context"),
        (226, 30, 30, "length"),
        (226, 31, 31, "length"),
        (226, 32, 31, "context"),
    ],
)
async def test_without_a_shift_every_token_up_to_the_limit_comes(
    n_prompt: int, max_tokens: int | None, n_generated: int, reason: str
) -> None:
    async with running_daemon(MODEL, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "x" * (n_prompt - 1), max_tokens=max_tokens, **GREEDY)
    assert (answer.finished.reason, answer.finished.n_generated) == (reason, n_generated)
    assert len(answer.tokens) == n_generated
    assert (answer.finished.n_shifts, answer.finished.n_truncated) == (0, 0)


@pytest.mark.parametrize("options", [MODEL, NO_SHIFT])
async def test_a_shift_gives_every_token_asked_for(options: str) -> None:
    async with running_daemon(options, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "x" * 225, max_tokens=96, shift=True, **GREEDY)
    assert (answer.finished.reason, answer.finished.n_generated) == ("length", 96)
    assert answer.finished.n_shifts == 1
    assert answer.finished.n_shifted == N_CTX // 2
    assert len(answer.tokens) == 96


@pytest.mark.parametrize("n_keep", [1, 30, 200])
async def test_what_follows_a_shift_is_what_follows_the_rest_alone(n_keep: int) -> None:
    """Where the rest is evaluated again: then nothing of what was dropped is left in it."""
    prompt = [ord("a") + n % 19 for n in range(251)]
    async with running_daemon(NO_SHIFT, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        neighbours = [(f"neighbour {i}", {"max_tokens": 300, "shift": True}) for i in range(3)]
        options = {"max_tokens": 10, "shift": True, "n_keep": n_keep, **GREEDY}
        answer, *_ = await ask_all(client, [([TokensPart(prompt)], options), *neighbours])
        finished = answer.finished
        assert (finished.n_generated, finished.n_shifts, finished.n_keep) == (10, 1, n_keep)
        said = [*prompt, *answer.tokens[:5]]  # with BOS one more than the context holds
        rest = said[: n_keep - 1] + said[n_keep - 1 + finished.n_shifted :]
        alone = await cold(daemon.path, [TokensPart(rest)], max_tokens=5, **GREEDY)
    assert alone.tokens == answer.tokens[5:]


@pytest.mark.parametrize("n_keep", [-1, 0, 1, 252, N_CTX - 2, N_CTX - 1, N_CTX, N_CTX + 1, -2])
@pytest.mark.parametrize("options", [MODEL, NO_SHIFT])
async def test_whatever_is_to_be_kept_each_shift_drops_something(n_keep: int, options: str) -> None:
    async with running_daemon(options, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "x" * 251, n_keep=n_keep, shift=True, max_tokens=50, **GREEDY)
        assert answer.finished.n_generated == 50
        assert 0 <= answer.finished.n_keep < N_CTX
        assert answer.finished.n_shifts <= answer.finished.n_shifted
        assert answer.finished.n_shifts <= 50
        await daemon.has_all_slots()


async def test_without_a_limit_a_shifting_request_ends_at_a_known_number_of_tokens() -> None:
    async with (
        running_daemon(MODEL, n_ctx=32, n_batch=32) as daemon,
        connect(daemon.path) as client,
    ):
        limit = (await client.status()).n_generated_limit
        assert 32 < limit < 2**20
        asks = [(f"{i}", {"shift": True, **GREEDY}) for i in range(6)]  # two of them wait
        for answer in await ask_all(client, asks):
            assert answer.finished.reason == "length"
            assert answer.finished.n_generated == limit
        await daemon.has_all_slots()


async def test_a_long_text_that_repeats_itself_comes_whole() -> None:
    text = "na " * 1000 + "batman"
    async with running_daemon(MODEL, n_ctx=N_CTX) as daemon, connect(daemon.path) as client:
        answer = await ask(client, "sing", grammar=literal(text), shift=True)
    assert answer.text == text
    assert answer.finished.reason == "stop"
    assert answer.finished.n_generated == 3006


# --- images at the border -----------------------------------------------------------------------

IMAGE_ROWS = 20
LARGE_IMAGE: list[Part] = [TextPart("<image:65:red>", special=True)]


@pytest.mark.parametrize("n_before", [30, 31, 40, 49, 50, 51])
async def test_a_cut_takes_an_image_whole_or_leaves_it(n_before: int) -> None:
    """The naive cut lies 50 inputs in: before, at the start of, inside, or behind the image."""
    n_ctx, max_tokens = 128, 8
    text_before, text_after = "b" * (n_before - 1), "a" * (n_ctx + 50 - 8 - n_before - IMAGE_ROWS)
    prompt: list[Part] = [
        TextPart(text_before),
        TextPart(f"<image:{IMAGE_ROWS}:red>", special=True),
        TextPart(text_after),
    ]
    async with running_daemon(MODEL, n_ctx=n_ctx) as daemon, connect(daemon.path) as client:
        answer = await ask(client, prompt, truncate=True, max_tokens=max_tokens, **GREEDY)
        n_prompt, n_cut = answer.finished.n_prompt, answer.finished.n_truncated
        assert n_prompt == n_ctx + 50 - 8
        assert n_prompt - n_cut <= n_ctx - max_tokens
        touches = n_before < n_cut < n_before + IMAGE_ROWS
        assert not touches, "an image was cut in two"
        assert n_cut in (50, n_before + IMAGE_ROWS)


@pytest.mark.parametrize("options", [MODEL, NO_SHIFT])
@pytest.mark.parametrize("n_before", [43, 44, 50, 63, 64, 65])
async def test_a_shift_takes_an_image_whole_or_leaves_it(n_before: int, options: str) -> None:
    n_ctx = 128
    prompt: list[Part] = [
        TextPart("b" * (n_before - 1)),
        TextPart(f"<image:{IMAGE_ROWS}:red>", special=True),
        TextPart("a" * (120 - n_before - IMAGE_ROWS)),
    ]
    async with running_daemon(options, n_ctx=n_ctx) as daemon, connect(daemon.path) as client:
        answer = await ask(client, prompt, shift=True, max_tokens=30, **GREEDY)
        n_shifted = answer.finished.n_shifted
        assert answer.finished.n_generated == 30
        assert answer.finished.n_shifts == 1
        assert n_shifted in (n_ctx // 2, n_before + IMAGE_ROWS)
        assert not n_before < n_shifted < n_before + IMAGE_ROWS


async def test_an_image_larger_than_the_context_is_refused_with_the_limit() -> None:
    async with running_daemon(MODEL, n_ctx=64) as daemon, connect(daemon.path) as client:
        failed = await refusal(client, LARGE_IMAGE)
        assert failed.code == "invalid_request"
        assert "65" in failed.message
        assert "64" in failed.message
        await daemon.has_all_slots()


async def test_many_images_are_cut_to_those_that_fit() -> None:
    images = "".join(f"<image:20:{name}>" for name in ("red", "green", "blue", "grey", "pink"))
    prompt: list[Part] = [TextPart(f"{images}<image:20:last>say", special=True)]
    async with running_daemon(MODEL, n_ctx=64) as daemon, connect(daemon.path) as client:
        assert (await refusal(client, prompt)).code == "prompt_too_long"
        cut = await ask(client, prompt, truncate=True, n_keep=1, max_tokens=8, **GREEDY)
        assert cut.finished.n_truncated == 80
        left: list[Part] = [TextPart("<image:20:pink><image:20:last>say", special=True)]
        assert (await cold(daemon.path, left, max_tokens=8, **GREEDY)).text == cut.text
