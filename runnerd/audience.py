"""Who hears what sequences have to say: each its listener, which never waits."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from runnerd.core.emission import Emission
from runnerd.core.sequence import Sequence
from runnerd.errors import EngineFailed
from runnerd.figures import Figures

log = structlog.get_logger()

Listener = Callable[[Emission], None]


@dataclass(frozen=True, slots=True)
class _Heard:
    sequence: Sequence
    listener: Listener
    request_id: int


class Audience:
    """The listeners of the sequences that have not ended."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._heard: dict[int, _Heard] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def add(self, sequence: Sequence, listener: Listener, request_id: int) -> None:
        """Have a sequence heard; `request_id` is its client's number for what it belongs to."""
        self._heard[sequence.seq_id] = _Heard(sequence, listener, request_id)

    def waits(self, seq_id: int) -> bool:
        """Whether a sequence is here that has no slot yet."""
        heard = self._heard.get(seq_id)
        return heard is not None and heard.sequence.lease is None

    def request_id_of(self, seq_id: int) -> int:
        """Return a sequence's number at its client; 0 if nobody hears it any more."""
        heard = self._heard.get(seq_id)
        return 0 if heard is None else heard.request_id

    def tell(self, emissions: list[Emission]) -> None:
        """Hand what sequences have to say to their listeners."""
        for emission in emissions:
            seq_id = emission.sequence.seq_id
            if emission.token is not None:
                self._figures.n_generated_tokens += 1
            heard = self._heard.get(seq_id)
            if heard is None:  # it has been ended by what a listener did just now
                continue
            if emission.ending is not None:
                del self._heard[seq_id]
                self._figures.count_end(emission.sequence, emission.ending, monotonic())
            heard.listener(emission)

    def fail_rest(self, error: EngineFailed) -> None:
        """Fail those whose end was lost between batcher and listener, by an error of either."""
        while self._heard:
            _, heard = self._heard.popitem()
            try:
                heard.listener(Emission(heard.sequence, "", ending=error))
            except Exception:
                log.exception("sequence.lost", seq_id=heard.sequence.seq_id)
