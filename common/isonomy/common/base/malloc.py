"""Half a megabyte at a time, without asking the kernel for fresh pages each time.

A session makes and drops blocks of some 512 KiB for every chunk, in Python and in gRPC. glibc's
malloc gives blocks of that size back to the kernel at once, so every chunk is written to pages that
the kernel must first find and clear: measured, that was a quarter of the time that 2 MB took
through the relay, and more on a busy machine. glibc raises its limits by itself when larger blocks
are freed, as numpy does all day; here they are set at once to where that ends. What is freed is
then kept, up to 64 MiB, for the next chunk. Nothing else changes, and without glibc nothing does.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGEST_REUSED_BYTES = 1 << 25  # the most that glibc takes, and where its own adaptation ends
MOST_KEPT_BYTES = 1 << 26  # twice that, as the adaptation has it


@cache  # once per process
def reuse_freed_memory() -> bool:
    """Keep freed blocks for reuse; whether this C library knows how."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    kept = mallopt(_M_MMAP_THRESHOLD, LARGEST_REUSED_BYTES)
    return bool(kept and mallopt(_M_TRIM_THRESHOLD, MOST_KEPT_BYTES))
