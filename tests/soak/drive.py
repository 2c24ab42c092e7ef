"""One round of a soak: requests on a batcher and an engine, with everything that can happen.

All that is drawn comes from the seed, so that a round that fails can be run again.
"""

from collections import Counter
from random import Random

from runnerd.core.batch import (
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    KVRemove,
    KVShift,
    Step,
    StepResult,
)
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.sequence import FinishReason, Sequence, admit
from runnerd.engine.base import run_step
from runnerd.engine.reference import ReferenceEngine
from runnerd.errors import EngineFailed, RequestError
from tests.soak.account import Account
from tests.soak.asks import Ask, Asker
from tests.soak.worlds import World

N_MOST_LIVE = 20
SHARE_RETOLD = 0.2  # of the sequences, run again on an engine of their own
EDITS = {
    KVCopy: "forks",
    KVRemove: "removals",
    KVShift: "moves",
    CheckpointSave: "checkpoints saved",
    CheckpointRestore: "checkpoints used",
}


class Round:
    """Runs `n_requests` in a world; `counts` says what happened."""

    def __init__(self, world: World, seed: int, engine: ReferenceEngine) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._rng = Random(f"{world.name} {seed}")
        self._engine = engine
        self._batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
        self._asker = Asker(self._rng, world)
        self._live: dict[int, Account] = {}
        self._faulty: set[int] = set()
        self._n_made = 0
        self._now = 0.0

    def run(self, n_requests: int) -> None:
        """Run until every request has ended, and nothing is left of it."""
        rng = self._rng
        while self._n_made < n_requests:
            while len(self._live) < N_MOST_LIVE and rng.random() < 0.55:
                for ask in self._asker.ask():
                    self._submit(ask)
            self._disturb()
            self._step()
        for seq_id in list(self._live):
            self._batcher.pause(seq_id, paused=False)
        n_most = 100 * self._world.n_ctx
        while self._step():
            n_most -= 1
            assert n_most, f"not done: {sorted(self._live)}"
        self._check_idle()

    # --- what comes in ---------------------------------------------------------------------

    def _submit(self, ask: Ask) -> None:
        self._n_made += 1
        seq_id = self._n_made
        self.counts["requests"] += 1
        try:
            prompt, options = ask.on(self._engine)
            sequence = admit(seq_id, prompt, options, self._engine.limits, self._now)
        except RequestError as err:
            self.counts[f"refused: {err.code}"] += 1
            return
        if self._rng.random() < 0.01:
            self._engine.faults.nan_for(seq_id)
            self._faulty.add(seq_id)
        self._live[seq_id] = Account(ask, sequence)
        self._batcher.submit(sequence)
        self._batcher.check()

    def _disturb(self) -> None:
        """Do to sequences, between steps, what clients and machines do."""
        rng = self._rng
        if not self._live:
            return
        seq_id = rng.choice(list(self._live))
        if rng.random() < 0.01:
            self._end(seq_id)
        elif rng.random() < 0.06:
            self._batcher.pause(seq_id, paused=True)
            self.counts["pauses"] += 1
        if rng.random() < 0.15:
            self._batcher.pause(seq_id, paused=False)
        if rng.random() < 0.01:
            self._engine.faults.no_kv_slot(rng.choice((1, 1, 2, 9)))
        self._batcher.check()

    def _end(self, seq_id: int) -> None:
        account = self._live[seq_id]
        asked: FinishReason = self._rng.choice(("cancelled", "timeout"))
        account.asked = account.asked or asked
        self._hear(self._batcher.end(seq_id, asked))

    # --- steps -----------------------------------------------------------------------------

    def _step(self) -> bool:
        batcher, engine = self._batcher, self._engine
        step = batcher.plan(self._now)
        batcher.check()
        self._hear(batcher.news())
        running = batcher.residency.running
        self.counts["waits for a prefix"] += sum(s.follows is not None for s in running)
        if step is None:
            return False
        self.counts["steps"] += 1
        self._count_edits(step)
        if self._cancel_in_flight(step):
            engine.faults.abort_after(self._rng.randrange(3))
        result = run_step(engine, step)
        self._now += 0.01
        self._hear(self._recorded(step, result))
        batcher.check()
        return True

    def _cancel_in_flight(self, step: Step) -> bool:
        """Perhaps cancel who takes part in the step; return whether it is worth stopping."""
        if self._rng.random() > 0.04:
            return False
        spans = [span for batch in step.batches for span in batch.spans]
        self._end(self._rng.choice(spans).seq_id)
        self._batcher.check()
        return self._batcher.wants_abort

    def _recorded(self, step: Step, result: StepResult) -> list[Emission]:
        self.counts["aborts"] += result.is_aborted
        if result.n_stored is not None:
            self.counts["rows kept of aborts"] += sum(n or 0 for n in result.n_stored)
        if result.n_batches == len(step.batches) or result.is_aborted:
            return self._batcher.commit(step, result, self._now, self._rng.random() * 0.1)
        self.counts["full caches"] += 1
        return self._batcher.back_off(step, result, self._now)

    def _count_edits(self, step: Step) -> None:
        for edit in step.edits:
            if type(edit) in EDITS:
                self.counts[EDITS[type(edit)]] += 1
        self.counts["steps with adapters"] += bool(step.adapters)

    # --- what comes out --------------------------------------------------------------------

    def _hear(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            account = self._live[emission.sequence.seq_id]
            account.hear(emission)
            if account.ending is not None:
                del self._live[emission.sequence.seq_id]
                self._count(account)

    def _count(self, account: Account) -> None:
        sequence, ending, counts = account.sequence, account.ending, self.counts
        account.check(self._engine, self._world.n_ctx)
        code = ending.code if isinstance(ending, RequestError) else ending
        counts[f"ended: {code}"] += 1
        counts["tokens"] += len(account.tokens)
        counts["prefix hits"] += sequence.n_cached > 0
        counts["inputs from the cache"] += sequence.n_cached
        counts["suspensions"] += sequence.n_suspended
        counts["truncations"] += sequence.n_truncated > 0
        counts["shifts"] += sequence.n_shifts
        counts["log-probabilities"] += len(account.logprobs)
        counts["told of progress"] += len(account.progress)
        counts["forced texts"] += account.ask.literal is not None
        if isinstance(ending, EngineFailed):
            assert sequence.seq_id in self._faulty or "no room" in str(ending), ending
        else:
            self._asker.answered(account.ask, account.tokens)
        if self._rng.random() < SHARE_RETOLD and self._is_repeatable(sequence):
            counts["retold alone"] += 1
            self._retell(account)

    def _is_repeatable(self, sequence: Sequence) -> bool:
        """Whether it says the same alone: what was moved has seen what was dropped.

        So where cells are shared, and evaluated again rather than moved, it may differ.
        """
        if sequence.seq_id in self._faulty:
            return False
        is_split = self._world.kv == "split" and sequence.n_suspended == 0
        return sequence.n_shifts == 0 or is_split or not self._engine.limits.can_shift

    def _retell(self, account: Account) -> None:
        """Run a request on an engine of its own: to the last token it says the same."""
        was_cut = account.asked is not None or isinstance(account.ending, EngineFailed)
        with self._world.engine() as engine:
            prompt, options = account.ask.on(engine)
            alone = Account(account.ask, admit(1, prompt, options, engine.limits, 0.0))
            batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
            batcher.submit(alone.sequence)
            while step := batcher.plan(0.0):
                for emission in batcher.commit(step, run_step(engine, step), 0.0, 0.01):
                    alone.hear(emission)
                if was_cut and len(alone.tokens) >= len(account.tokens):
                    break
        said = alone.tokens[: len(account.tokens)] if was_cut else alone.tokens
        assert account.tokens == said, "says something else alone"
        if not was_cut:
            assert account.ending == alone.ending
            assert (account.text, account.logprobs) == (alone.text, alone.logprobs)
            assert account.sequence.n_truncated == alone.sequence.n_truncated

    def _check_idle(self) -> None:
        batcher = self._batcher
        assert not self._live
        assert batcher.seq_ids == ()
        assert batcher.n_waiting() == 0
        assert batcher.residency.pool.n_free == self._world.n_slots
