"""Reuse of freed memory, so that chunks need no fresh pages from the kernel.

A session allocates and frees blocks of some 512 KiB for every chunk, in Python and in gRPC. glibc's
malloc gives blocks of that size back to the kernel at once, so every chunk is written to pages that
the kernel must first find and clear. Measured, that was a quarter of the time that 2 MB took
through the relay, and more on a busy machine. glibc raises its limits by itself when larger blocks
are freed, as numpy does all the time; here they start where that ends. Up to 64 MiB of freed memory
then stay for the next chunk. Nothing else changes, and without glibc nothing does.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGEST_REUSED_BYTES = 1 << 25  # the most that glibc takes, and where its own adaptation ends
MOST_FREE_BYTES = 1 << 26  # twice that, as the adaptation has it


@cache  # once per process
def reuse_freed_memory() -> bool:
    """Reuse freed blocks from now on. Returns whether this C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    reused = mallopt(_M_MMAP_THRESHOLD, LARGEST_REUSED_BYTES)
    return bool(reused and mallopt(_M_TRIM_THRESHOLD, MOST_FREE_BYTES))
