"""The bare decode loop: llama_decode and argmax, with nothing around them.

What `runnerd` is measured against, so it imports none of its engine. Started by
`loadtest.streams.raw` as `python -m loadtest.streams.raw_loop REQUEST`; says on stdout that it is
ready, then its rounds, a line of JSON each, and ends when stdin does.

Laid out like the daemon: an event loop idle on the main thread, all native calls on another.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Sequence
from time import perf_counter, process_time

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.prompts import cut, prompt_texts
from loadtest.streams.raw_messages import RawRequest, Ready, Rounds
from loadtest.streams.recording import Load, ModelSetup, Round, StreamRecord

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
import llama_cpp as lib  # reads the environment when it is loaded

CELL_STEP = 256  # llama.cpp rounds the cells of a stream up to this
DEFAULT_N_CTX = 4096  # as the daemon, where nothing is asked for
LOAD_MMAP = 1
ERROR = 4  # ggml_log_level
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}

Int32s = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


class Rows:
    """A llama_batch over numpy arrays, one entry per row."""

    def __init__(self, tokens: Int32s, pos: Int32s, slots: Int32s, wants_logits: Int32s) -> None:
        self.tokens, self.pos = tokens, pos
        self.n_outputs = int(wants_logits.sum())
        self._slots, self._wants = slots, wants_logits.astype(np.int8)
        self._n_slots = np.ones(tokens.size, np.int32)
        self._slots_at = np.uintp(slots.ctypes.data) + np.arange(
            0, slots.nbytes, slots.itemsize, dtype=np.uintp
        )
        int32 = ctypes.POINTER(ctypes.c_int32)
        self.batch = lib.llama_batch(
            n_tokens=tokens.size,
            token=tokens.ctypes.data_as(int32),
            pos=pos.ctypes.data_as(int32),
            n_seq_id=self._n_slots.ctypes.data_as(int32),
            seq_id=self._slots_at.ctypes.data_as(ctypes.POINTER(int32)),
            logits=self._wants.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


class RawLoop:
    """A model and a context for one load."""

    def __init__(self, setup: ModelSetup, load: Load) -> None:
        self._load = load
        self._model = _load_model(setup.model)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        n_trained: int = lib.llama_model_n_ctx_train(self._model)
        self._context = lib.llama_init_from_model(
            self._model, _params(setup, load.n_streams, n_trained)
        )
        if not self._context:
            sys.exit("llama.cpp makes no context for these options")
        self._memory = lib.llama_get_memory(self._context)
        self._n_batch: int = lib.llama_n_batch(self._context)
        self._logits_at = 0
        self._logits: Logits = np.empty((0, self._n_vocab), np.float32)

    def warm_up(self) -> None:
        """Run the shapes that a daemon runs before it says that it is ready."""
        for n_rows in (1, self._load.n_streams):
            self._forget()
            slots = np.arange(n_rows, dtype=np.int32)
            self._decode(Rows(np.zeros_like(slots), np.zeros_like(slots), slots, slots * 0 + 1))

    def run(self, n_round: int) -> Round:
        """Evaluate the prompts in full batches, then generate in lockstep."""
        n_streams, n_prompt = self._load.n_streams, self._load.n_prompt
        texts = prompt_texts(self._load.seed, n_round, n_streams, n_prompt)
        prefill = self._prefill([cut(self._tokenize(text), n_prompt) for text in texts])
        slots = np.arange(n_streams, dtype=np.int32)
        rows = Rows(slots.copy(), slots * 0 + n_prompt, slots, slots * 0 + 1)
        history = np.zeros((self._load.max_tokens, n_streams), np.int32)
        self._forget()

        started_at, cpu_started_at = perf_counter(), process_time()
        first_at: list[float] = []
        for batch in prefill:
            logits = self._decode(batch)
            n_done = len(first_at)
            rows.tokens[n_done : n_done + batch.n_outputs] = logits.argmax(axis=1)
            first_at += [perf_counter()] * batch.n_outputs
        step_at: list[float] = []
        for step in range(1, self._load.max_tokens):
            history[step - 1] = rows.tokens
            rows.tokens[:] = self._decode(rows).argmax(axis=1)
            rows.pos += 1
            step_at.append(perf_counter())
        cpu_s = process_time() - cpu_started_at
        history[-1] = rows.tokens

        # The loop looks at no token; that a daemon would have stopped at one is told all the same.
        has_end = [self._has_end(history[:, slot]) for slot in slots]
        streams = [
            StreamRecord(started_at, [(at, 1) for at in (first, *step_at)], ended_early=ended)
            for first, ended in zip(first_at, has_end, strict=True)
        ]
        return Round(streams, n_prompt, len(prefill) + len(step_at), cpu_s)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Rows]:
        n_streams, n_prompt = self._load.n_streams, self._load.n_prompt
        tokens = np.array(prompts, np.int32).ravel()
        pos = np.tile(np.arange(n_prompt, dtype=np.int32), n_streams)
        slots = np.repeat(np.arange(n_streams, dtype=np.int32), n_prompt)
        wants = (pos == n_prompt - 1).astype(np.int32)
        cuts = range(0, tokens.size, self._n_batch)
        return [
            Rows(*(column[at : at + self._n_batch] for column in (tokens, pos, slots, wants)))
            for at in cuts
        ]

    def _decode(self, rows: Rows) -> Logits:
        code: int = lib.llama_decode(self._context, rows.batch)
        if code != 0:
            sys.exit(f"llama_decode failed with code {code}")
        pointer = lib.llama_get_logits(self._context)  # waits for the end of the pass
        at = ctypes.addressof(pointer.contents)
        if at != self._logits_at:
            shape = (self._load.n_streams, self._n_vocab)
            self._logits_at, self._logits = at, np.ctypeslib.as_array(pointer, shape)
        return self._logits[: rows.n_outputs]

    def _forget(self) -> None:
        lib.llama_memory_clear(self._memory, False)

    def _tokenize(self, text: str) -> list[int]:
        encoded = text.encode()
        tokens = (ctypes.c_int32 * (len(encoded) + 1))()
        count: int = lib.llama_tokenize(
            self._vocab, encoded, len(encoded), tokens, len(tokens), False, False
        )
        wants_bos = lib.llama_vocab_get_add_bos(self._vocab)
        bos = [int(lib.llama_vocab_bos(self._vocab))] if wants_bos else []
        return bos + list(tokens[:count])

    def _has_end(self, tokens: Int32s) -> bool:
        return any(lib.llama_vocab_is_eog(self._vocab, token) for token in tokens.tolist())


def _load_model(path: str) -> int:
    params = lib.llama_model_default_params()
    params.load_mode = LOAD_MMAP
    model: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    return model


def _params(setup: ModelSetup, n_streams: int, n_trained: int) -> ctypes.Structure:
    n_ctx = setup.n_ctx or min(n_trained, DEFAULT_N_CTX)
    is_unified = setup.kv == "unified"
    params: ctypes.Structure = lib.llama_context_default_params()
    params.n_ctx = _rounded(n_streams * n_ctx) if is_unified else n_streams * _rounded(n_ctx)
    params.n_batch = min(setup.n_batch, params.n_ctx)
    params.n_ubatch = min(setup.n_ubatch, params.n_batch)
    params.n_seq_max = params.n_outputs_max = n_streams
    params.n_threads = setup.n_threads or len(os.sched_getaffinity(0))
    params.n_threads_batch = params.n_threads
    params.flash_attn_type = FLASH_ATTENTION[setup.flash_attn]
    params.kv_unified = is_unified
    params.swa_full = True
    params.no_perf = True
    return params


def _rounded(n_cells: int) -> int:
    return -(-n_cells // CELL_STEP) * CELL_STEP


def _log_error(level: int, text: bytes, _user_data: int | None) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def _say(message: Ready | Rounds) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _work(request: RawRequest) -> None:
    loop = RawLoop(request.setup, request.load)
    _say(Ready())
    loop.warm_up()
    _say(Rounds([loop.run(n_round) for n_round in range(request.load.n_rounds)]))
    sys.stdin.read()  # until who asked has seen how much memory this takes


def main() -> None:
    """Run the loop as the first argument says."""
    request = msgspec.json.decode(sys.argv[1], type=RawRequest)
    log = lib.llama_log_callback(_log_error)
    lib.llama_log_set(log, ctypes.c_void_p())
    lib.llama_backend_init()
    asyncio.run(asyncio.to_thread(_work, request))


if __name__ == "__main__":
    main()
