"""Images without pixels: in special text, `<image:ROWS[:POSITIONS][:causal][:NAME]>`.

`<image:12:red>` is an image of 12 rows that takes 12 positions, and its rows see each other;
`<image:12:4:red>` takes only 4 positions, `<image:12:causal:red>` is read row after row. The
same numbers and name mean the same image. Without a name the name is empty.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from runnerd.errors import InvalidRequest

IMAGE = r"<image:\d+(?::\d+)?(?::causal)?(?::[A-Za-z_]\w*)?>"
_FIELDS = re.compile(r"<image:(\d+)(?::(\d+))?(:causal)?(?::(\w+))?>")
MAX_ROWS = 2**15 - 1  # so that a medium's shape fits into its id
NAMED = 0b10110101  # in the id of every such image, and by chance in one of 256 others


@dataclass(frozen=True, slots=True)
class Medium:
    """What an image is to the model. The id holds it all, so that nothing need be remembered."""

    media_id: int
    n_rows: int
    n_pos: int
    one_pass: bool

    @classmethod
    def of_name(cls, name: str, *, non_causal: bool) -> "Medium":
        """Read `<image:...>`.

        Raises:
            InvalidRequest: no rows, too many, or more positions than rows.
        """
        fields = _FIELDS.fullmatch(name)
        assert fields is not None, name
        # Nine digits are too many rows already, and int() does not read thousands of them.
        n_rows = int(fields[1][:9])
        n_pos = int(fields[2][:9]) if fields[2] else n_rows
        if not 1 <= n_pos <= n_rows <= MAX_ROWS:
            raise InvalidRequest(
                "prompt", name, f"an image of 1 to {MAX_ROWS} rows, at most as many positions"
            )
        one_pass = non_causal and fields[3] is None
        content = f"{fields[4] or ''}:{n_rows}".encode()
        digest = int.from_bytes(blake2b(content, digest_size=3).digest(), "big")
        return cls.of_id(digest << 39 | NAMED << 31 | n_pos << 16 | n_rows << 1 | one_pass)

    @classmethod
    def of_id(cls, media_id: int) -> "Medium":
        """Return the medium that `of_name` gave this id; any other is an AssertionError."""
        assert media_id >> 31 & 0xFF == NAMED, f"medium {media_id} without its rows"
        return cls(
            media_id=media_id,
            n_rows=media_id >> 1 & MAX_ROWS,
            n_pos=media_id >> 16 & MAX_ROWS,
            one_pass=bool(media_id & 1),
        )

    def offset(self, row: int) -> int:
        """Return the position of a row, counted from the image's own."""
        return row * self.n_pos // self.n_rows
