"""Builders for tests of the core; they take every fact that matters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runnerd.core.batch import Adapters, Limits, Sampled, Sampling, Step, StepResult
from runnerd.core.batcher import Batcher
from runnerd.core.emission import Emission
from runnerd.core.prompt import Group, Prompt, media_key
from runnerd.core.sequence import Options, Priority, admit
from runnerd.core.sequence import Sequence as Running

END = 0  # the token that ends a generation
BEGIN_MARK, BETWEEN_MARK, END_MARK = 60, 44, 62  # tokens round an image, and between its tiles
GREEDY = Sampling()


class ByteVocabulary:
    """A token adds the byte of its number; END adds none."""

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == END else bytes([token % 256])

    def is_end(self, token: int) -> bool:
        return token == END


@dataclass(frozen=True, slots=True)
class Image:
    """A medium of a prompt: `n_rows` inputs at `n_pos` positions (as many if not given).

    Each of `n_tiles` is a group of so many; all are one unit, with the marks if there are any.
    """

    media_id: int
    n_rows: int
    n_pos: int = 0
    one_pass: bool = True
    encoded: bool = False
    n_tiles: int = 1
    has_marks: bool = False


def make_prompt(*parts: Sequence[int] | Image) -> Prompt:
    """Return a prompt of runs of tokens and of images."""
    inputs: list[int] = []
    groups: list[Group] = []
    for part in parts:
        if isinstance(part, Image):
            unit = _unit_of(part)
            groups += [group.moved(len(inputs)) for group in unit.groups]
            inputs += unit.inputs
        else:
            inputs += part
    return Prompt(tuple(inputs), tuple(groups))


def _unit_of(image: Image) -> Prompt:
    """Return an image with the tokens that belong to it."""
    inputs = [BEGIN_MARK] if image.has_marks else []
    starts: list[int] = []
    for row in range(0, image.n_tiles * image.n_rows, image.n_rows):
        inputs += [BETWEEN_MARK] if starts else []
        starts.append(len(inputs))
        inputs += [media_key(image.media_id, row + n) for n in range(image.n_rows)]
    inputs += [END_MARK] if image.has_marks else []
    groups = [
        Group(
            start=start,
            stop=start + image.n_rows,
            n_pos=image.n_pos or image.n_rows,
            media_id=image.media_id,
            one_pass=image.one_pass,
            row0=tile * image.n_rows,
            encoded=image.encoded,
            lead=start,
            trail=len(inputs) - start - image.n_rows,
        )
        for tile, start in enumerate(starts)
    ]
    return Prompt(tuple(inputs), tuple(groups))


def rows_named(media_id: int) -> str:
    """Return what stands for a medium's rows where only the core sees them."""
    return f"rows of {media_id}"


def make_limits(
    *,
    n_slots: int = 2,
    n_ctx: int = 64,
    n_cells: int | None = None,
    n_batch: int = 32,
    n_ubatch: int | None = None,
    can_shift: bool = True,
    is_unified: bool = False,
    window: int = 0,
    can_rewind: bool = True,
    has_attention: bool = True,
) -> Limits:
    """Return limits; cells for every slot and batches of any kind unless told otherwise."""
    return Limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_slots * n_ctx if n_cells is None else n_cells,
        n_batch=n_batch,
        n_ubatch=n_batch if n_ubatch is None else n_ubatch,
        can_shift=can_shift,
        is_unified=is_unified,
        window=window,
        can_rewind=can_rewind,
        has_attention=has_attention,
    )


def make_batcher(
    *,
    n_slots: int = 2,
    n_ctx: int = 64,
    n_cells: int | None = None,
    n_batch: int = 32,
    n_ubatch: int | None = None,
    can_shift: bool = True,
    is_unified: bool = False,
    target_itl_s: float = 0.05,
) -> Batcher:
    """Return a batcher over the byte vocabulary."""
    limits = make_limits(
        n_slots=n_slots,
        n_ctx=n_ctx,
        n_cells=n_cells,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        can_shift=can_shift,
        is_unified=is_unified,
    )
    return Batcher(limits, ByteVocabulary(), target_itl_s)


def make_sequence(
    seq_id: int,
    prompt: Prompt | Iterable[int],
    *,
    limits: Limits | None = None,
    max_tokens: int | None = None,
    stops: tuple[str, ...] = (),
    n_keep: int = 0,
    truncate: bool = False,
    shift: bool = False,
    sampling: Sampling = GREEDY,
    adapters: Adapters = (),
    priority: Priority = "normal",
    wants_progress: bool = False,
    queued_at: float = 0.0,
) -> Running:
    """Return an admitted sequence; a prompt may be given as its tokens."""
    prompt = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
    options = Options(
        sampling=sampling,
        max_tokens=max_tokens,
        stops=stops,
        n_keep=n_keep,
        truncate=truncate,
        shift=shift,
        adapters=adapters,
        priority=priority,
        wants_progress=wants_progress,
    )
    return admit(seq_id, prompt, options, limits or make_limits(), queued_at)


def result_of(step: Step, token: Callable[[int], Sampled]) -> StepResult:
    """Return the result of a whole step, in which `token(seq_id)` is sampled."""
    wanted = [
        token(span.seq_id) for batch in step.batches for span in batch.spans if span.wants_logits
    ]
    return StepResult(len(step.batches), tuple(wanted))


def run_step(
    batcher: Batcher, *, token: Sampled = 65, now: float = 0.0, elapsed_s: float = 0.0
) -> tuple[Step, list[Emission]]:
    """Plan and commit a step in which every wanted row gives the token."""
    step = batcher.plan(now)
    assert step is not None, "nothing to do"
    batcher.check()
    emissions = batcher.commit(step, result_of(step, lambda _: token), now, elapsed_s)
    batcher.check()
    return step, emissions


def run_all(batcher: Batcher, *, token: int = 65, n_most: int = 1000) -> list[Emission]:
    """Run steps until nothing is left to do; return all that was said."""
    emissions: list[Emission] = []
    for _ in range(n_most):
        step = batcher.plan(0.0)
        batcher.check()
        if step is None:
            return emissions
        emissions += batcher.commit(step, result_of(step, lambda _: token), 0.0, 0.0)
        batcher.check()
    raise AssertionError(f"not done after {n_most} steps")


def rows_of(step: Step) -> dict[int, int]:
    """Return how many rows of a step each sequence has."""
    counts: dict[int, int] = {}
    for batch in step.batches:
        for span in batch.spans:
            counts[span.seq_id] = counts.get(span.seq_id, 0) + len(span.inputs)
    return counts


def text_of(emissions: Iterable[Emission], seq_id: int) -> str:
    """Return the text that a sequence was given."""
    return "".join(e.text for e in emissions if e.sequence.seq_id == seq_id)


def endings(emissions: Iterable[Emission]) -> dict[int, object]:
    """Return why each sequence ended; one that ended twice is an error."""
    ended: dict[int, object] = {}
    for emission in emissions:
        if emission.ending is not None:
            assert emission.sequence.seq_id not in ended, "ended twice"
            ended[emission.sequence.seq_id] = emission.ending
    return ended
