"""A prompt as the model sees it: inputs, groups and positions; cuts on group borders.

An input takes one cell of the KV cache: a token id (>= 0), or a row of a media embedding,
written as a key (< 0) that differs whenever the content or the row differs. So two prompts
share a prefix exactly where their inputs are equal.

A group is a run of inputs that belong together: context cuts never fall inside one. With
`one_pass` it also has to go through the model in a single forward pass.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from hashlib import blake2b

from runnerd.errors import PromptTooLong


@dataclass(frozen=True, slots=True)
class Group:
    """The inputs [start, stop): one medium, taking `n_pos` positions."""

    start: int
    stop: int
    n_pos: int
    media_id: int
    one_pass: bool

    @property
    def n_inputs(self) -> int:
        """Inputs, and so cells, of the group."""
        return self.stop - self.start


def media_key(media_id: int, row: int) -> int:
    """Return the input that stands for one row of a medium: negative, 63 bits."""
    digest = blake2b(f"{media_id}:{row}".encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "big") >> 1)


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text to tokenize; `special`: names of special tokens in it are those tokens."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class TokensPart:
    """Token ids, taken as they are."""

    tokens: tuple[int, ...]


Part = TextPart | TokensPart


@dataclass(frozen=True, slots=True)
class Prompt:
    """Inputs in order, and the groups among them (ascending, disjoint)."""

    inputs: tuple[int, ...]
    groups: tuple[Group, ...] = ()
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _saved: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        saved = [0]
        for group in self.groups:
            saved.append(saved[-1] + group.n_inputs - group.n_pos)
        object.__setattr__(self, "_ends", tuple(group.stop for group in self.groups))
        object.__setattr__(self, "_saved", tuple(saved))

    def position(self, index: int) -> int:
        """Return the position of an input that is a token or the first of its group.

        `index` may lie past the end: generated tokens follow the prompt one by one.
        """
        if not self.groups:
            return index
        return index - self._saved[bisect_right(self._ends, index)]

    def group_at(self, index: int) -> Group | None:
        """Return the group that the input lies in."""
        found = bisect_right(self._ends, index)
        if found < len(self.groups) and self.groups[found].start <= index:
            return self.groups[found]
        return None

    def cut_end(self, start: int, stop: int) -> int:
        """Return `stop`, moved on to the end of the group that a cut [start, stop) splits."""
        group = self.group_at(stop)
        return group.stop if group is not None and group.start < stop else stop

    def without(self, start: int, stop: int) -> "Prompt":
        """Return the prompt with the inputs [start, stop) gone; the borders split no group."""
        gone = stop - start
        groups = [
            group
            if group.stop <= start
            else Group(
                group.start - gone, group.stop - gone, group.n_pos, group.media_id, group.one_pass
            )
            for group in self.groups
            if group.stop <= start or group.start >= stop
        ]
        return Prompt(self.inputs[:start] + self.inputs[stop:], tuple(groups))


def keep_end(prompt: Prompt, n_keep: int, n_ctx: int) -> int:
    """Return how many inputs at the start survive cuts.

    A negative `n_keep` means the whole prompt. At least one input after them can always be
    dropped. A group across the border is not kept.
    """
    n_keep = len(prompt.inputs) if n_keep < 0 else n_keep
    n_keep = min(n_keep, len(prompt.inputs), n_ctx - 1)
    group = prompt.group_at(n_keep)
    return group.start if group is not None else n_keep


def truncate(prompt: Prompt, n_keep: int, n_room: int) -> Prompt:
    """Drop as few inputs as needed right after `n_keep` to leave at most `n_room`.

    Raises:
        PromptTooLong: the kept inputs and the last group do not leave one input to evaluate.
    """
    n_prompt = len(prompt.inputs)
    if n_prompt <= n_room:
        return prompt
    stop = prompt.cut_end(n_keep, n_keep + n_prompt - n_room)
    if stop >= n_prompt:
        raise PromptTooLong(
            f"prompt of {n_prompt} inputs cannot be cut to {n_room} after the first {n_keep}",
            n_prompt=n_prompt,
            n_ctx=n_room,
            n_keep=n_keep,
        )
    return prompt.without(n_keep, stop)


def shift_end(prompt: Prompt, n_keep: int, n_inputs: int, n_ctx: int) -> int:
    """Return the end of the inputs [n_keep, end) to drop from a sequence of `n_inputs`.

    Half of what may be dropped, at least one, moved on to the end of a group that the cut
    would split.

    Source: Ollama's runner, ShiftDiscard (target free = max((ctx - keep) / 2, 1)).
    """
    target = max((n_ctx - n_keep) // 2, 1)
    n_free = n_ctx - n_inputs
    return prompt.cut_end(n_keep, n_keep + max(target - n_free, 1))
