"""What every rank of a test needs, imported once by the server that they are forked from."""

from __future__ import annotations

import torch

import raygnn.loops.link_prediction
import raygnn.loops.node_classification
import raygnn.loops.worker
import raygnn.runtime.launch  # noqa: F401

torch.set_num_threads(1)
