"""A worker's process: memory that is kept, determinism, random seeds."""

from __future__ import annotations

import ctypes
import os

import torch

from raygnn.config import LoadedConfig, resolve
from raygnn.loops.randomness import seed_process

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


def prepare_process(loaded: LoadedConfig) -> None:
    """Makes this process as the config wants it: environment, determinism, random seeds."""
    config = loaded.config
    keep_freed_memory()
    if config.init_env is not None:
        resolve(config.init_env, "init_env", loaded.allow_modules)()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
    seed_process(config.seed)
