"""Encoders over per-layer blocks."""

from raygnn.models.encoder import Encoder
from raygnn.models.gcn import GCN
from raygnn.models.mlp import MLP
from raygnn.models.sage import GraphSAGE

__all__ = ["GCN", "MLP", "Encoder", "GraphSAGE"]
