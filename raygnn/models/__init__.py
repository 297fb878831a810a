"""Encoders over per-layer blocks, and decoders of links."""

from raygnn.models.attention_encoders import GAT, GATv2, Transformer
from raygnn.models.convolutions import GCN, GIN, GINE, GraphSAGE
from raygnn.models.encoder import MLP, Encoder
from raygnn.models.hetero import RGCN, Hetero
from raygnn.models.hetero_attention import HGT, SimpleHGN
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.learned_rows import EASE, Embedding, LightGCN

__all__ = [
    "EASE",
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "HGT",
    "MLP",
    "RGCN",
    "Embedding",
    "Encoder",
    "GATv2",
    "GraphSAGE",
    "Hetero",
    "HeteroEncoder",
    "LightGCN",
    "SimpleHGN",
    "Transformer",
]
