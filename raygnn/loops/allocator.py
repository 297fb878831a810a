"""How the C library keeps the memory that a step frees, for the next one."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h. The threshold is the largest that it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGEST_FROM_HEAP_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Tells malloc not to give freed memory back to the system while this process lives.

    Steps allocate and free the same tens of megabytes again and again. By default they go back to
    the system each time, and come again page by page, as zeros: a quarter of a training step on a
    CPU. What a process holds does not grow beyond its peak.

    Returns:
        Whether the C library has such settings; it is left as it is where not.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_TRIM_THRESHOLD, _NEVER), (_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
