"""A check of llama.cpp that fails in a serving daemon, as its parent is told of it."""

import os
import signal
from pathlib import Path

import pytest

from runnerd.client import ConnectionLost
from runnerd.launcher import ChildDied, launch
from runnerd.models import resolve_model
from tests.processes import needs_model

pytestmark = [pytest.mark.anyio, pytest.mark.llama, needs_model]

# Read by the child's Python at its start. On SIGUSR2 it asks for more memory than there is, where
# llama.cpp does not expect to get none: ggml_init of ggml.c.
SITE = """
import ctypes, signal

class Params(ctypes.Structure):
    _fields_ = [("n_bytes", ctypes.c_size_t), ("at", ctypes.c_void_p), ("none", ctypes.c_bool)]

def abort(number, frame):
    from runnerd.engine.llama.library import ggml
    ggml.ggml_init.argtypes = [Params]
    ggml.ggml_init(Params(2**62, None, False))

signal.signal(signal.SIGUSR2, abort)
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_abort_in_llama_cpp_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    options = ["--threads=1"]
    env = {"PYTHONPATH": str(tmp_path)}
    model = resolve_model("smollm2")
    async with launch(model, slots=1, ctx=256, options=options, env=env) as runner:
        await runner.ready()
        async with runner.client.generate("Once", shift=True) as stream:
            await anext(stream)
            os.kill(runner.pid, signal.SIGUSR2)
            with pytest.raises(ConnectionLost) as caught:
                async for _ in stream:
                    pass
    died = caught.value.__cause__
    assert isinstance(died, ChildDied)
    assert died.cause == "aborted"
    assert died.death.summary.startswith("llama.cpp/ggml/src/ggml.c:")
    assert "GGML_ASSERT(" in died.death.summary
