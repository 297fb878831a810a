"""Imports everything that the ranks of a test need, in the server that forks them."""

from __future__ import annotations

import gc
from importlib import import_module

import numba.core.registry
import torch
from threadpoolctl import threadpool_limits

for _name in ("raygnn.train", "tests.faults.faulty_storage", "tests.small_runs", "tensorboardX"):
    import_module(_name)
torch.set_num_threads(1)
threadpool_limits(1, "blas")
# Imports what numba would import with its first kernel.
numba.core.registry.cpu_target.target_context.refresh()
# Each run ends with a garbage collection, which need not visit what was imported.
gc.freeze()
