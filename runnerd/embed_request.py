"""One `Embed` in progress: its inputs tokenized and checked, its vectors sent as they come."""

from array import array
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from runnerd.embed_queue import EmbeddingRequest
from runnerd.engine.base import Engine, ModelInfo, Vectors
from runnerd.errors import InvalidRequest, PromptTooLong, Unsupported
from runnerd.intake import Share
from runnerd.options import INLINE_SIZE, parts_of, size_of
from runnerd.outbox import Outbox
from runnerd.request import Request
from runnerd.request_log import Number
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

MESSAGE_BYTES = 2**18  # of vectors: enough for frames to cost little, small beside the outbox
FRAME_SHARE = 4  # no message takes more than this part of a frame
COUNT_BYTES = 16  # what an input adds to a message besides its vector, at most

Tokens = Sequence[int]  # as arrays: an int object would take eight times the memory


class Embedding(Request):
    """A request for embeddings and its answers. It holds a place in the queue to its end."""

    def __init__(self, message: wire.Embed, runner: Runner, outbox: Outbox, share: Share) -> None:
        super().__init__(message, runner, outbox, share)
        self._wanted = message
        self._n_inputs = len(message.inputs)
        self._inputs: list[Tokens] = []
        self._truncated: list[int] = []
        runner.places.take_embedding()

    @property
    def numbers(self) -> dict[str, Number]:
        """How many inputs it has, and tokens so far."""
        return {"n_inputs": self._n_inputs, "n_prompt": sum(map(len, self._inputs))}

    async def run(self) -> None:
        """Answer it.

        Raises:
            RequestError: it cannot be served, or not any more.
        """
        try:
            await self._prepare()
            self.message = self._wanted = replace(self._wanted, inputs=[])
            self.share.give_back()
            with self.runner.embedding(self._inputs, self._wanted.pooling) as request:
                await self._send(request)
        finally:
            self.runner.places.leave_embedding()

    # --- inputs ----------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Tokenize all inputs before any is evaluated: one that is wrong fails the request."""
        engine = await self.runner.vocabulary.loaded()
        _check_pooling(self._wanted, engine.model)
        for indexes, is_long in _portions(self._wanted.inputs):
            expand = partial(self._expand_all, indexes)
            await self.runner.vocabulary.read(expand, is_long=is_long)

    def _expand_all(self, indexes: range, engine: Engine) -> None:
        for index in indexes:
            tokens, is_cut = self._expand(index, engine)
            self._inputs.append(tokens)
            if is_cut:
                self._truncated.append(index)

    def _expand(self, index: int, engine: Engine) -> tuple[Tokens, bool]:
        """Return the tokens of an input, and whether it was cut."""
        info, prompt = engine.model, self._wanted.inputs[index]
        try:
            tokens = array("i", engine.expand(parts_of(prompt)).inputs)
        except InvalidRequest as err:
            field = str(err.details["field"]).removeprefix("prompt")
            value, limit = err.details["value"], str(err.details["limit"])
            raise InvalidRequest(f"inputs[{index}]{field}", value, limit) from err
        suffix = array("i", info.embed_suffix)
        if not tokens:
            raise InvalidRequest(f"inputs[{index}]", repr(prompt), "a token or more")
        if suffix and tokens[-len(suffix) :] != suffix:
            tokens += suffix
        n_tokens, n_most = len(tokens), info.n_embed
        if n_tokens <= n_most:
            return tokens, False
        if not self._wanted.truncate:
            raise PromptTooLong(
                f"inputs[{index}] has {n_tokens} tokens, an embedding takes at most {n_most}",
                field=f"inputs[{index}]",
                index=index,
                n_prompt=n_tokens,
                n_embed=n_most,
            )
        return tokens[: n_most - len(suffix)] + suffix, True

    # --- answers ---------------------------------------------------------------------------

    async def _send(self, request: EmbeddingRequest) -> None:
        """Send the vectors in messages of a fair size, as fast as the client reads them."""
        first, n_done, n_all = 0, 0, len(self._inputs)
        waiting: list[bytes] = []
        while n_done < n_all:
            vectors = await request.fetch()
            n_done += len(vectors)
            waiting += _packed(vectors, normalize=self._wanted.normalize)
            n_most = self._n_vectors(vectors.shape[1])
            while len(waiting) >= n_most or (waiting and n_done == n_all):
                sent, waiting = waiting[:n_most], waiting[n_most:]
                stop = first + len(sent)
                await self.outbox.wait_for_room()
                self.outbox.put(
                    wire.Embeddings(
                        self.request_id,
                        sent,
                        vectors.shape[1],
                        [len(tokens) for tokens in self._inputs[first:stop]],
                        first,
                        last=stop == n_all,
                        truncated=[index for index in self._truncated if first <= index < stop],
                    )
                )
                first = stop

    def _n_vectors(self, n_dims: int) -> int:
        """Return how many vectors go into a message."""
        n_bytes = min(MESSAGE_BYTES, self.runner.config.session.max_frame_bytes // FRAME_SHARE)
        return max(1, n_bytes // (4 * n_dims + COUNT_BYTES))


def _check_pooling(wanted: wire.Embed, info: ModelInfo) -> None:
    """Refuse what the model cannot do.

    Raises:
        Unsupported, InvalidRequest: it makes no embeddings, not this kind, or of nothing.
    """
    if not info.poolings:
        raise Unsupported(f"{info.name} makes no embeddings")
    if wanted.pooling not in info.poolings:
        known = ", ".join(info.poolings)
        raise Unsupported(f"{info.name} pools by {known}, not by {wanted.pooling}")
    if not wanted.inputs:
        raise InvalidRequest("inputs", "[]", "an input or more")


def _portions(inputs: list[wire.Prompt]) -> Iterator[tuple[range, bool]]:
    """Cut inputs into runs that take a moment each, and say which of them take longer.

    Others read the vocabulary in between, and a cancel is seen.
    """
    start, size = 0, 0
    for index, prompt in enumerate(inputs):
        size += 1 + size_of(prompt)
        if size > INLINE_SIZE:
            yield range(start, index + 1), True
            start, size = index + 1, 0
    if start < len(inputs):
        yield range(start, len(inputs)), start > 0


def _packed(vectors: Vectors, *, normalize: bool) -> list[bytes]:
    """Return vectors as the wire has them; with `normalize`, of length 1 unless all zero."""
    if normalize:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = (vectors / np.where(lengths > 0.0, lengths, 1.0)).astype(np.float32)
    return [vector.tobytes() for vector in vectors.astype("<f4", copy=False)]
