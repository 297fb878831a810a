"""Imports everything that the ranks of a test need, in the server that forks them."""

from __future__ import annotations

from importlib import import_module

import numba.core.registry
import torch

for _name in ("raygnn.train", "tests.faults.faulty_storage", "tests.small_runs", "tensorboardX"):
    import_module(_name)
torch.set_num_threads(1)
# Imports what numba would import with its first kernel.
numba.core.registry.cpu_target.target_context.refresh()
