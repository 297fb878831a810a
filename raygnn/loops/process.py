"""Process settings of a run: determinism, threads, memory, and random state."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from raygnn.config import LoadedConfig, resolve
from raygnn.data.hashing import mix

_MASK = (1 << 64) - 1


def seed_micro_batch(seed: int, epoch: int, index: int) -> None:
    """Seeds the device generators from the micro-batch, not from its rank.

    So dropout masks are equal for any number of workers, and after a resume.
    """
    key = mix(mix(mix(seed & _MASK) ^ epoch) ^ index)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)


def seed_process(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # Not torch.manual_seed: for each kind of device that is not there it formats a stack, in all
    # 1 ms, which is a large part of a served answer.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def random_state() -> dict[str, Any]:
    """States of all generators of this process, loadable with `weights_only=True`."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


# From glibc's malloc.h. The threshold is the largest allowed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGEST_FROM_HEAP_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Keeps freed memory in the process instead of returning it to the system.

    Each step allocates and frees the same tens of megabytes. By default they return to the system
    and come back page by page, zeroed: a quarter of a training step on a CPU. The process does not
    grow beyond its peak. Returns False if the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_TRIM_THRESHOLD, _NEVER), (_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)


@contextmanager
def process_prepared(loaded: LoadedConfig) -> Iterator[None]:
    """Configures this process while a block runs; see `prepare_process`."""
    with process_restored():
        prepare_process(loaded)
        yield


@contextmanager
def process_restored() -> Iterator[None]:
    """Restores random states, determinism, precision and the number of threads after a block, which
    may run in a user's program.
    """
    state, num_threads = random_state(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    matmul_precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_num_threads(num_threads)
        torch.set_float32_matmul_precision(matmul_precision)
        restore_random_state(state)


def prepare_process(loaded: LoadedConfig) -> None:
    config = loaded.config
    keep_freed_memory()
    if config.init_env is not None:
        resolve(config.init_env, "init_env", loaded.allow_modules)()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
    seed_process(config.seed)
