"""The image files of a client's requests: what goes along, by its hash, or when it is wanted.

A file that this connection has sent before goes by its hash, and so do large ones. What the daemon
does not have, or has thrown out meanwhile, it asks for; it is answered from the request's own
parts, which are kept to its end.
"""

from collections import OrderedDict
from collections.abc import Iterable, Set
from dataclasses import dataclass
from hashlib import sha256

import anyio
from anyio import to_thread
from msgspec.structs import replace

from runnerd.sizes import HASHED_AT_ONCE
from runnerd.streams import CannotSend
from runnerd_protocol.messages import Generate, Media, MediaPart, Part

MEDIA_FRAME_BYTES = 64  # more than a `Media` takes beside its data
N_REMEMBERED = 1024  # hashes of files that were sent; one that the daemon lacks costs a question


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A generation whose files have their SHA-256 with them; `files` are these, by it."""

    request: Generate
    files: dict[bytes, bytes]

    def n_bytes_without(self, sent: Set[bytes]) -> int:
        """Return the size of the files that were not sent before."""
        return sum(len(data) for digest, data in self.files.items() if digest not in sent)

    def by_hash(self, sent: Set[bytes] | None = None) -> Generate:
        """Return the request without the files that were sent before, or without any.

        One that it has twice goes along once.
        """
        gone = set(self.files if sent is None else sent)
        parts: list[Part] = []
        for part in self.request.prompt:
            assert not isinstance(part, str)  # a text of its own has no files
            if not isinstance(part, MediaPart) or part.sha256 not in self.files:
                parts.append(part)
            elif part.sha256 in gone:
                parts.append(MediaPart(sha256=part.sha256))
            else:
                parts.append(MediaPart(self.files[part.sha256]))
                gone.add(part.sha256)
        return replace(self.request, prompt=parts)


async def outgoing_of(request: Generate, max_bytes: int) -> Outgoing | None:
    """Return a request with its files hashed, in a thread if they are large; None: it has none.

    Raises:
        CannotSend: a file has more than `max_bytes`, or another hash than it was given with.
    """
    parts = request.prompt
    if isinstance(parts, str):
        return None
    n_bytes = 0
    for index, part in enumerate(parts):
        if isinstance(part, MediaPart):
            n_bytes += len(part.data)
            if len(part.data) > max_bytes:
                raise CannotSend(
                    f"prompt[{index}] is a file of {len(part.data)} bytes,"
                    f" a frame holds {max_bytes}"
                )
    if not n_bytes:
        return None
    if n_bytes <= HASHED_AT_ONCE:
        return _hashed(request, list(parts))
    return await to_thread.run_sync(_hashed, request, list(parts), abandon_on_cancel=True)


def _hashed(request: Generate, parts: list[Part]) -> Outgoing:
    files: dict[bytes, bytes] = {}
    for index, part in enumerate(parts):
        if isinstance(part, MediaPart) and part.data:
            digest = sha256(part.data).digest()
            if part.sha256 not in (None, digest):
                raise CannotSend(f"prompt[{index}] is a file with another SHA-256 than was given")
            files[digest] = part.data
            parts[index] = MediaPart(part.data, digest)
    return Outgoing(replace(request, prompt=parts), files)


class LinkFiles:
    """Files of the requests in progress, those that the daemon wants, and what it has been sent."""

    def __init__(self) -> None:
        self._files: dict[int, dict[bytes, bytes]] = {}
        self._due: dict[tuple[int, bytes], None] = {}  # in the order in which they were wanted
        self._news = anyio.Event()
        self._sent: OrderedDict[bytes, None] = OrderedDict()  # the longest unused first

    @property
    def sent(self) -> Set[bytes]:
        """The hashes of files that the daemon has been sent lately."""
        return self._sent.keys()

    def keep(self, outgoing: Outgoing) -> None:
        """Have the files of a request ready until it is dropped."""
        self._files[outgoing.request.request_id] = outgoing.files

    def drop(self, request_id: int) -> None:
        """Forget the files of a request; what is still due of them will not be sent."""
        for digest in self._files.pop(request_id, ()):
            self._due.pop((request_id, digest), None)

    def note_sent(self, outgoing: Outgoing) -> None:
        """Remember that the daemon has the files of a request, or will ask for them."""
        for digest in outgoing.files:
            self._sent[digest] = None
            self._sent.move_to_end(digest)
        while len(self._sent) > N_REMEMBERED:
            self._sent.popitem(last=False)

    def want(self, request_id: int, digests: Iterable[bytes]) -> bytes | None:
        """Note which files the daemon wants; return the hash of one that is not here.

        Then none becomes due: the request cannot begin.
        """
        files = self._files.get(request_id, {})
        wanted = list(digests)
        for digest in wanted:
            if digest not in files:
                return digest
        self._due.update(dict.fromkeys((request_id, digest) for digest in wanted))
        self._news.set()
        return None

    async def next_due(self) -> Media:
        """Wait for a file that is to be sent."""
        while not self._due:
            self._news = anyio.Event()
            await self._news.wait()
        request_id, digest = next(iter(self._due))
        del self._due[request_id, digest]
        return Media(request_id, self._files[request_id][digest])
