"""The account of image files: which are here, which are in use, and which have to go.

All together never count for more than the limit, and what one client uses for no more than half of
it, one file apart. What is in use is never thrown out; of the rest what was used longest ago goes
first.
"""

from collections import Counter
from dataclasses import dataclass

import anyio
from cachetools import LRUCache

from runnerd.errors import InvalidMedia, Overloaded

ENTRY_BYTES = 1024  # that a file takes besides its content: else tiny ones would take any amount


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image that can be read: its content's number, and its size in pixels."""

    media_id: int
    width: int
    height: int


class Holder:
    """Who uses files, such as a connection; `n_bytes` is what they count for.

    `turn` is held by the one of its files that is decoded or next: who brings many files lets
    others go in between.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self.turn = anyio.Lock()
        self._n_leases: Counter[bytes] = Counter()

    def has(self, file: "File") -> bool:
        """Whether it uses a file."""
        return file.digest in self._n_leases

    def take(self, file: "File") -> None:
        """Count one more lease of a file."""
        if not self.has(file):
            self.n_bytes += file.n_bytes
        self._n_leases[file.digest] += 1

    def give_back(self, file: "File") -> None:
        """Count one lease of a file less."""
        self._n_leases[file.digest] -= 1
        if not self._n_leases[file.digest]:
            del self._n_leases[file.digest]
            self.n_bytes -= file.n_bytes


class File:
    """A file that is here; `picture` is what was read in it, `error` why nothing could be."""

    def __init__(self, digest: bytes, data: bytes) -> None:
        self.digest = digest
        self.data = data
        self.n_leases = 0
        self.reading = anyio.Lock()
        self.picture: Picture | None = None
        self.error: InvalidMedia | None = None

    @property
    def n_bytes(self) -> int:
        """What it counts for."""
        return len(self.data) + ENTRY_BYTES


class Files:
    """Files by their SHA-256, and those that were read by what they show."""

    def __init__(self, n_bytes_limit: int) -> None:
        self.n_bytes_in_use = 0
        self._n_bytes_limit = n_bytes_limit
        self._in_use: dict[bytes, File] = {}
        self._unused: LRUCache[bytes, File] = LRUCache(
            n_bytes_limit, getsizeof=lambda file: file.n_bytes
        )
        self._digests: dict[int, dict[bytes, None]] = {}  # by media_id, in order of reading

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._in_use or digest in self._unused

    @property
    def n_bytes(self) -> int:
        """What all of them count for."""
        return self.n_bytes_in_use + int(self._unused.currsize)

    def hold(self, holder: Holder, digest: bytes, data: bytes | None = None) -> File | None:
        """Count one more lease of a file that is here, or with `data` of a new one.

        Raises:
            InvalidMedia: it is larger than all files together may be.
            Overloaded: the files in use leave no room for it, or those of its holder do.
        """
        file = self._in_use.get(digest) or self._unused.get(digest)
        is_new = file is None
        if file is None:
            if data is None:
                return None
            file = File(digest, data)
        self._check_share(holder, file)
        if is_new:
            self._make_room(file.n_bytes)
        if digest not in self._in_use:
            self._unused.pop(digest, None)
            self._in_use[digest] = file
            self.n_bytes_in_use += file.n_bytes
        file.n_leases += 1
        holder.take(file)
        return file

    def release(self, holder: Holder, file: File) -> None:
        """Count one lease of a file less; one that was not read is not kept without."""
        holder.give_back(file)
        file.n_leases -= 1
        if file.n_leases == 0:
            del self._in_use[file.digest]
            self.n_bytes_in_use -= file.n_bytes
            if file.picture is not None:
                self._unused[file.digest] = file

    def note(self, file: File, picture: Picture) -> None:
        """Note what was read in a file that is in use."""
        assert file.n_leases > 0, "read for nobody"
        file.picture = picture
        self._digests.setdefault(picture.media_id, {})[file.digest] = None

    def that_shows(self, media_id: int) -> File | None:
        """Return a file of an image, any that is here."""
        for digest in self._digests.get(media_id, ()):
            return self._in_use.get(digest) or self._unused.get(digest)
        return None

    def _check_share(self, holder: Holder, file: File) -> None:
        n_most = self._n_bytes_limit // 2
        if not holder.n_bytes or holder.has(file) or holder.n_bytes + file.n_bytes <= n_most:
            return
        raise Overloaded(
            f"images of the connection's requests in progress take {holder.n_bytes} bytes of"
            f" {n_most}: no room for {file.n_bytes} more",
            n_bytes=file.n_bytes,
            n_bytes_in_use=holder.n_bytes,
            n_bytes_limit=n_most,
        )

    def _make_room(self, n_bytes: int) -> None:
        n_most, n_in_use = self._n_bytes_limit, self.n_bytes_in_use
        if n_bytes > n_most:
            raise InvalidMedia(f"a file of {n_bytes} bytes", f"at most {n_most}")
        if n_in_use + n_bytes > n_most:
            raise Overloaded(
                f"images of requests in progress take {n_in_use} bytes of {n_most}:"
                f" no room for {n_bytes} more",
                n_bytes=n_bytes,
                n_bytes_in_use=n_in_use,
                n_bytes_limit=n_most,
            )
        while self.n_bytes + n_bytes > n_most:
            self._forget(*self._unused.popitem())

    def _forget(self, digest: bytes, file: File) -> None:
        assert file.picture is not None, "only what was read is kept"
        digests = self._digests[file.picture.media_id]
        del digests[digest]
        if not digests:
            del self._digests[file.picture.media_id]
