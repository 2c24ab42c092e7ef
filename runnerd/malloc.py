"""How the C library's allocator treats what images leave behind.

A frame with an image is a block of many MiB, and so are the image's file and its pixels. After the
first one was freed, glibc serves blocks of up to 32 MiB from its heaps, of which threads have their
own, and what is freed between others there stays with the process: half a GiB after some hundred
uploads, and more with every hundred images. Above a fixed size each block is mapped by itself, and
goes back to the system when it is freed; what is smaller all threads take from one heap.
"""

import ctypes

# A mapped block costs a fault per page: some ms for 16 MiB, little beside decoding an image. What
# steps and usual frames need is smaller, and stays in the heap.
MAPPED_BYTES = 2**18
KEPT_BYTES = 2 * MAPPED_BYTES  # free at the heap's end: the proportion that glibc keeps itself
N_HEAPS = 1  # Python's threads take turns anyway

# Source: malloc.h of glibc.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def return_large_blocks() -> None:
    """Have freed blocks of `MAPPED_BYTES` or more go back to the system, where glibc is used."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_ARENA_MAX, N_HEAPS)
