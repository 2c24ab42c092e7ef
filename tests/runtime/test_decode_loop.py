"""What the decode loop finds out about images before it plans a step."""

import anyio
import pytest

from runnerd.core.batch import Step
from runnerd.core.emission import Emission
from runnerd.core.prompt import TextPart
from runnerd.core.sequence import Options
from runnerd.media.files import Holder
from runnerd.media.store import Lease
from tests.daemon import PATIENCE_S, running_daemon
from tests.media.encode_engine import Request, answer, ask, image

pytestmark = pytest.mark.anyio

TEXT = "look here " * 8  # long enough to be taken from the cache


async def test_an_image_that_was_encoded_before_is_in_the_first_step_after_admission() -> None:
    async with running_daemon("layers=0,patch=8") as daemon:
        batcher = daemon.runner.batcher
        assert batcher is not None
        await answer(daemon, "elsewhere", 1)
        await answer(daemon, TEXT, 2)  # the text is cached from here on
        first_steps: list[Step | None] = []
        running, newcomer = Request(), Request()

        def listen(emission: Emission) -> None:
            first_steps.append(batcher.in_flight)  # of its progress: what was planned just now
            newcomer.listen(emission)

        with Lease(daemon.runner.pictures, Holder()) as lease, anyio.fail_after(PATIENCE_S):
            prompt = daemon.engine.expand([TextPart(TEXT), await image(lease, 1)])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: ask(daemon, running, "text", n_tokens=400))
                await running.has_begun.wait()
                options = Options(max_tokens=1, wants_progress=True)
                seq_id = daemon.runner.submit(prompt, options, listen)
                await newcomer.has_ended.wait()
                daemon.runner.end(running.seq_id, "cancelled")
        step = first_steps[0]
        assert step is not None
        spans = [span for batch in step.batches for span in batch.spans]
        assert {span.seq_id for span in spans} == {running.seq_id, seq_id}
        assert daemon.runner.figures.n_images_encoded == 2
