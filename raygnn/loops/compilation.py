"""`training.compile`: the model by torch.compile."""

from __future__ import annotations

import os
import shutil

import torch
from torch import nn

from raygnn.errors import ResourceError
from raygnn.models.segment import break_graphs


def compile_module(module: nn.Module, device: torch.device) -> None:
    """Lets torch compile the module's forward pass at its first call; its weights keep their names.

    Raises:
        ResourceError: there is no compiler for it.
    """
    _check_compiler(device)
    break_graphs()
    # Each batch has other numbers of nodes and edges: shapes are symbols from the first one on.
    module.compile(dynamic=True)


def _check_compiler(device: torch.device) -> None:
    """What torch's inductor takes: C++ code for the CPU; for GPUs triton compiles C by itself."""
    variable, names = ("CXX", ("g++",)) if device.type == "cpu" else ("CC", ("gcc", "clang"))
    chosen = os.environ.get(variable)
    wanted = (chosen.split()[0],) if chosen else names
    if not any(shutil.which(name) for name in wanted):
        raise ResourceError(
            f"training.compile=True is invalid: it takes a compiler, and {' or '.join(wanted)} is "
            f"not on this machine. Install {wanted[0]} on every node, name another one in the "
            f"environment variable {variable}, or set training.compile to false.",
            id="training-no-compiler",
        )
