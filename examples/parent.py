"""A parent with two runners: each line of stdin is a prompt for the one that has less to do.

    python examples/parent.py smollm2
    python examples/parent.py layers=2 --engine=reference

Kill one of them (`kill -9 PID`): its prompts go to the other, it is started again, and you are
told why it died. What is asked is answered, as long as one of them lives.
"""

import sys
from functools import partial
from itertools import count

import anyio
from anyio import to_thread

from runnerd.client import ClientError, ConnectionLost
from runnerd.launcher import Died, Restart, Restarted, Runner, Stalled, launch

MAX_TRIES = 5
Load = dict[Runner, int]  # how many prompts each works on

say = partial(print, flush=True)


async def answer(number: int, prompt: str, load: Load) -> None:
    """Print the answer to a prompt; ask another runner where one dies over it."""
    for _ in range(MAX_TRIES):
        runner = min(load, key=lambda each: (not each.is_up, load[each]))
        load[runner] += 1
        try:
            await runner.ready()
            answered = await runner.client.complete(prompt, max_tokens=40)
            say(f"{number} from {runner.pid}: {answered.text.strip()!r}")
            return
        except ConnectionLost as err:
            say(f"{number} is asked again: {err.__cause__ or err}")
        except ClientError as err:
            say(f"{number} has no answer: {err}")
            return
        finally:
            load[runner] -= 1
    say(f"{number} has no answer after {MAX_TRIES} tries")


async def watch(runner: Runner) -> None:
    """Print what happens to a runner."""
    async for event in runner.events():
        match event:
            case Died(death, restarts_in_s):
                then = "" if restarts_in_s is None else f"; starts again in {restarts_in_s} s"
                say(f"{death.pid} died: {death}{then}")
            case Restarted(pid):
                say(f"{pid} has taken its place")
            case Stalled(what, still_s):
                say(f"{runner.pid} has not moved for {still_s:.1f} s: {what}")


async def main(model: str, options: list[str]) -> None:
    """Answer prompts until stdin ends, and what was asked is answered."""
    start = partial(launch, model, options=options, restart=Restart(max_restarts=10))
    async with start() as one, start() as two, anyio.create_task_group() as watching:
        for runner in (one, two):
            watching.start_soon(watch, runner)
            await runner.ready()
            say(f"{runner.pid} is ready")
        load = {one: 0, two: 0}
        async with anyio.create_task_group() as asking:
            for number in count(1):
                line = await to_thread.run_sync(sys.stdin.readline)
                if not line:
                    break
                asking.start_soon(answer, number, line.strip(), load)
        watching.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
