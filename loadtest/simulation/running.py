"""The core at a size that no engine here can run: its steps take as long as a model says.

Everything but the engine is real: requests are admitted, planned, committed and ended by the
batcher. Time is the model's, so the same seed gives the same requests, steps and instants; only
what the host spends on a step is measured.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import thread_time

from msgspec import Struct

from loadtest.simulation.service import Service
from loadtest.simulation.step_times import StepTimes, size_of
from runnerd.core.batch import Limits, Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import Options, Sequence, admit

N_VOCAB = 49_152
LETTER = b"a"  # what every token adds to a text
N_CTX = 2048
PROMPT_MEDIAN, PROMPT_SIGMA, LONGEST_PROMPT = 150, 1.0, 1500
ANSWER_MEDIAN, ANSWER_SIGMA, LONGEST_ANSWER = 120, 0.8, 500
LEAST_SHARED = 8  # tokens of a request whose share counts: that of fewer is a matter of one step


class SimulatedLoad(Struct, frozen=True, kw_only=True):
    """Requests that come at random (Poisson), with log-normal lengths, and who serves them."""

    name: str
    times: StepTimes
    n_slots: int
    n_cells: int
    n_requests: int
    arrivals_per_s: float
    target_itl_ms: float
    n_batch: int = 2048
    seed: int = 1


@dataclass(slots=True)
class Told:
    """What a request's client would have seen: instants, and how it ended."""

    asked_at: float
    n_prompt: int
    max_tokens: int
    first_at: float = 0.0
    last_at: float = 0.0
    n_generated: int = 0
    longest_gap_s: float = 0.0
    queue_s: float = 0.0
    ended: str = ""


class Letters:
    """A vocabulary whose every token is a letter, and none an end."""

    def token_bytes(self, token: int) -> bytes:
        """Return the letter."""
        return LETTER

    def is_end(self, token: int) -> bool:
        """Return that it is none."""
        return False


class Simulation:
    """Runs a load; what came of it is in the lists afterwards.

    `plan_s` and `commit_s` are host time, `step_s` the model's; `n_running` and `n_decoding` are
    of the same steps. `shares` are what requests got of their equal shares while they generated.
    """

    def __init__(self, load: SimulatedLoad) -> None:
        self.load = load
        limits = Limits(
            n_slots=load.n_slots,
            n_ctx=N_CTX,
            n_cells=load.n_cells,
            n_batch=load.n_batch,
            n_ubatch=min(512, load.n_batch),
            is_unified=True,
        )
        self.batcher = Batcher(limits, Letters(), load.target_itl_ms / 1e3)
        self.now = 0.0
        self.told: dict[int, Told] = {}
        self.gaps_s = array("d")
        self.plan_s = array("d")
        self.commit_s = array("d")
        self.step_s = array("d")
        self.n_running = array("l")
        self.n_decoding = array("l")
        self.shares: list[float] = []
        self.n_suspended = 0
        self._service = Service()
        self._requests = _requests(load)
        self._next: Told | None = next(self._requests, None)
        self._content = Random(f"content {load.seed}")

    def run(self) -> None:
        """Run until every request has ended."""
        while self.step():
            pass

    def step(self) -> bool:
        """Run a step, or let time pass until somebody comes; return whether there was either."""
        self._arrive()
        started_s = thread_time()
        step = self.batcher.plan(self.now)
        plan_s = thread_time() - started_s
        if step is None:
            if self._next is None:
                return False
            self.now = self._next.asked_at
            return True
        elapsed_s = self.load.times.of(size_of(step))
        sampled = [span.seq_id for span in step.batches[0].spans if span.wants_logits]
        self.n_running.append(len(self.batcher.residency.running))
        self.n_decoding.append(sum(self.told[seq_id].n_generated > 0 for seq_id in sampled))
        self.now += elapsed_s
        result = StepResult(1, tuple(self._sample(seq_id) for seq_id in sampled))
        started_s = thread_time()
        emissions = self.batcher.commit(step, result, self.now, elapsed_s)
        self.commit_s.append(thread_time() - started_s)
        self.plan_s.append(plan_s)
        self.step_s.append(elapsed_s)
        self._hear(step, emissions)
        return True

    def _arrive(self) -> None:
        while self._next is not None and self._next.asked_at <= self.now:
            told = self._next
            seq_id = len(self.told)
            self.told[seq_id] = told
            # Nobody's prompt begins as another's: a shared prefix would be served for nothing.
            inputs = (seq_id, *self._content.choices(range(N_VOCAB), k=told.n_prompt - 1))
            options = Options(max_tokens=told.max_tokens)
            limits = self.batcher.limits
            self.batcher.submit(admit(seq_id, Prompt(inputs), options, limits, told.asked_at))
            self._next = next(self._requests, None)

    def _sample(self, seq_id: int) -> int:
        """Return a token that differs by request and place."""
        return (seq_id * 31 + self.told[seq_id].n_generated) % N_VOCAB

    def _hear(self, step: Step, emissions: list[Emission]) -> None:
        """Keep the accounts of a step: tokens first, for all are due their parts of them."""
        with_token = [e.sequence.seq_id for e in emissions if e.token is not None]
        newcomers: list[int] = []
        served: list[int] = []
        for seq_id in with_token:
            told = self.told[seq_id]
            if told.n_generated == 0:
                told.first_at = self.now
                newcomers.append(seq_id)
            else:
                gap_s = self.now - told.last_at
                told.longest_gap_s = max(told.longest_gap_s, gap_s)
                self.gaps_s.append(gap_s)
                served.append(seq_id)
            told.n_generated += 1
            told.last_at = self.now
        self._service.serve(served)
        self._service.enter(newcomers)
        for emission in emissions:
            if emission.ending is not None:
                self._end(emission.sequence)

    def _end(self, sequence: Sequence) -> None:
        told = self.told[sequence.seq_id]
        told.ended = str(sequence.ending)
        told.queue_s = sequence.timings.queue_s(self.now)
        self.n_suspended += sequence.n_suspended
        got, due = self._service.leave(sequence.seq_id)
        if got >= LEAST_SHARED:
            self.shares.append(got / due)


def _requests(load: SimulatedLoad) -> Iterator[Told]:
    """Yield the requests in the order in which they come."""
    rng = Random(f"requests {load.seed}")
    asked_at = 0.0
    for _ in range(load.n_requests):
        asked_at += rng.expovariate(load.arrivals_per_s)
        n_prompt = _length(rng, PROMPT_MEDIAN, PROMPT_SIGMA, LONGEST_PROMPT)
        max_tokens = _length(rng, ANSWER_MEDIAN, ANSWER_SIGMA, LONGEST_ANSWER)
        yield Told(asked_at, n_prompt, max_tokens)


def _length(rng: Random, median: int, sigma: float, longest: int) -> int:
    return min(max(1, round(median * rng.lognormvariate(0.0, sigma))), longest)
