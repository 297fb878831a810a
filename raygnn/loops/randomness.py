"""Random state: seeding per micro-batch, and the generators' states for a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from raygnn.data.hashing import mix

_MASK = (1 << 64) - 1


def seed_micro_batch(seed: int, epoch: int, index: int) -> None:
    """Seeds the device generators from what the micro-batch is, not from who runs it.

    So dropout masks are the same for any number of workers, and after a resume.
    """
    key = mix(mix(mix(seed & _MASK) ^ epoch) ^ index)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)


def seed_process(seed: int) -> None:
    """Seeds Python, NumPy and torch alike on every rank, so that all build the same model."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The states of all generators of this process, loadable with `weights_only=True`."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Puts back what `random_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
