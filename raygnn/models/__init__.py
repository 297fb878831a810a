"""Encoders over per-layer blocks."""

from raygnn.models.encoder import Encoder
from raygnn.models.gat import GAT, GATv2
from raygnn.models.gcn import GCN
from raygnn.models.gin import GIN
from raygnn.models.gine import GINE
from raygnn.models.mlp import MLP
from raygnn.models.sage import GraphSAGE
from raygnn.models.transformer import Transformer

__all__ = ["GAT", "GCN", "GIN", "GINE", "MLP", "Encoder", "GATv2", "GraphSAGE", "Transformer"]
