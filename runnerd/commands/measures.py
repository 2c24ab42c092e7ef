"""Figures as people read them: sizes, times, and bars of blocks."""

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
BLOCKS = " ▏▎▍▌▋▊▉█"  # eighths of a column
FULL = BLOCKS[-1]
TRACK = "░"  # the rest of a bar whose whole is to be seen


def size(n_bytes: int) -> str:
    """Return a size in the largest unit of which there is one; memory can be below zero."""
    for unit, name in UNITS:
        if abs(n_bytes) >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} B"


def clock(seconds: float) -> str:
    """Return a time as 0:01:07."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def bar(part: float, whole: float, n_columns: int) -> str:
    """Return a bar that is `n_columns` wide for the whole; what is more is cut off there.

    Whatever is there at all shows as an eighth of a column.
    """
    if whole <= 0 or part <= 0 or n_columns < 1:
        return ""
    n_eighths = max(1, round(min(part / whole, 1.0) * n_columns * 8))
    n_full, n_more = divmod(n_eighths, 8)
    return FULL * n_full + (BLOCKS[n_more] if n_more else "")
