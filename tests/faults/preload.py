"""What every rank of a test needs, imported once by the server that they are forked from."""

from __future__ import annotations

import torch

import tests.faults.faulty_storage  # noqa: F401

torch.set_num_threads(1)
