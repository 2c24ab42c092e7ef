"""A file that is no projector, or none for the model, ends the start of a daemon with its name."""

import pytest

pytest.importorskip("llama_cpp")

from tests.daemon_process import start_daemon_process
from tests.engine.broken_projectors import broken_projectors, fatal_projectors
from tests.engine.llama_builders import MODEL

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.llama,
    pytest.mark.skipif(MODEL is None, reason="the test model is not installed"),
]

# What llama.cpp would abort on, what it would take, and what it would refuse without a reason.
BAD, MISSING = 65, 66  # of sysexits.h
FILES = {
    "without heads": BAD,
    "cut in its last tensor": BAD,
    "for another text model": BAD,
    "missing": MISSING,
}


# Which assertion of ggml tells.
ABORTS = {
    "for images of no pixels": "GGML_ASSERT",
    "without tiles": "GGML_ASSERT(scale_factor > 1)",
    "with too many heads": "GGML_ASSERT",
    "with a narrow layer": "GGML_ASSERT",
}


@pytest.mark.parametrize(("name", "code"), FILES.items())
async def test_a_daemon_does_not_start_with_a_broken_projector(name: str, code: int) -> None:
    path = broken_projectors().get(name, "/nowhere/projector.gguf")
    async with start_daemon_process(
        "smollm2", "--mmproj", path, engine="llama", waits_until_ready=False
    ) as daemon:
        assert await daemon.exit_code() == code
        assert path in daemon.log


@pytest.mark.parametrize(("name", "fact"), ABORTS.items())
async def test_a_projector_that_llama_cpp_aborts_on_is_the_last_that_is_told_of(
    name: str, fact: str
) -> None:
    files = fatal_projectors()[name]
    async with start_daemon_process(
        files.model,
        *("--mmproj", files.mmproj, "--ctx", "256"),
        engine="llama",
        waits_until_ready=False,
    ) as daemon:
        assert await daemon.exit_code() == BAD
        last = daemon.log.splitlines()[-1]
        assert files.mmproj in last
        assert fact in last
