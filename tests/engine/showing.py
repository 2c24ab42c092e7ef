"""Pictures shown to an engine through a batcher, as a daemon would; what is said of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadtest.pictures import RGB, pixels
from runnerd.core.batch import Batch, BatchKind, Span
from runnerd.core.batcher import Batcher
from runnerd.core.prompt import ImagePart, Part, Prompt, TextPart
from runnerd.core.sequence import Options, admit
from runnerd.engine.base import EncodedImage, Engine, Pixels, run_step
from runnerd.media.images import media_id_of
from tests.engine.feeding import LOOKING

COLOUR = re.compile(rf"\b({'|'.join(RGB)})\b")


def image(*lines: Sequence[str], width: int = 64, height: int = 0) -> Pixels:
    """Return an image of rectangles, a line of colours each."""
    rgb = pixels(*lines, width=width, height=height)
    return Pixels(media_id_of(rgb), rgb)


@dataclass(slots=True)
class Said:
    """What was generated: the text, and of each token what else was likely."""

    text: str = ""
    outlooks: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    @property
    def colours(self) -> list[str]:
        """The names of colours in it."""
        return COLOUR.findall(self.text)


class Show:
    """Shows prompts with images to an engine, and remembers in which batches they went."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batcher = Batcher(engine.limits, engine, target_itl_s=0.05)
        self._images: dict[int, Pixels] = {}
        self._n_asked = 0
        self._batches: list[Batch] = []

    @property
    def media_spans(self) -> list[Span]:
        """All spans of rows of images so far."""
        media = [batch for batch in self._batches if batch.kind is not BatchKind.TOKENS]
        return [span for batch in media for span in batch.spans]

    def prompt(self, *parts: str | Pixels) -> Prompt:
        """Expand special texts and images."""
        expanded: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                expanded.append(TextPart(part, special=True))
            else:
                self._images[part.media_id] = part
                height, width, _ = part.rgb.shape
                expanded.append(ImagePart(part.media_id, width, height))
        return self._engine.expand(expanded)

    def ask(self, *prompts: Prompt, n_tokens: int = 1) -> list[Said]:
        """Generate greedily for all prompts at once, with nothing cached; return what is said."""
        engine, batcher = self._engine, self._batcher
        options = Options(LOOKING, max_tokens=n_tokens)
        said: dict[int, Said] = {}
        for prompt in prompts:
            self._n_asked += 1
            said[self._n_asked] = Said()
            alone = replace(options, cache_scope=str(self._n_asked))
            batcher.submit(admit(self._n_asked, prompt, alone, engine.limits, 0.0))
        while True:
            step = batcher.plan(0.0)
            batcher.check()
            for media_id, media in self._encoded(batcher.wanted_media()).items():
                batcher.offer_media(media_id, media)
            if step is None:
                if batcher.seq_ids:
                    continue
                return list(said.values())
            self._batches += step.batches
            result = run_step(engine, step)
            assert result.n_batches == len(step.batches), "the KV cache was full"
            for emission in batcher.commit(step, result, 0.0, 0.01):
                heard = said[emission.sequence.seq_id]
                heard.text += emission.text
                heard.outlooks += [each.top for each in emission.logprobs]

    def _encoded(self, media_ids: Sequence[int]) -> Mapping[int, EncodedImage]:
        if not media_ids:
            return {}
        found = self._engine.encode([self._images[media_id] for media_id in media_ids])
        media: dict[int, EncodedImage] = {}
        for media_id, each in zip(media_ids, found, strict=True):
            assert isinstance(each, EncodedImage), each
            media[media_id] = each
        return media
