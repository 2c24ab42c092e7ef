"""How the C library's allocator treats large blocks.

A frame with an image is a block of many MiB, and so are the image's file and its pixels. After the
first one was freed, glibc serves blocks of up to 32 MiB from its heaps, and what is freed between
others there stays with the process: half a GiB after some hundred uploads. Above a fixed size each
block is mapped by itself, and goes back to the system when it is freed.
"""

import ctypes

# A mapped block costs a fault per page: some ms for 16 MiB, little beside decoding an image. What
# steps and usual frames need is smaller, and stays in the heap.
MAPPED_BYTES = 2**20
KEPT_BYTES = 2 * MAPPED_BYTES  # free at a heap's end: the proportion that glibc keeps itself

# Source: malloc.h of glibc.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Have freed blocks of `MAPPED_BYTES` or more go back to the system, where glibc is used."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
