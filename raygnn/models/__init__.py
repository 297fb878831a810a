"""Encoders over per-layer blocks, and decoders of links."""

from raygnn.models.embedding import Embedding
from raygnn.models.encoder import MLP, Encoder
from raygnn.models.gat import GAT, GATv2
from raygnn.models.gcn import GCN
from raygnn.models.gin import GIN, GINE
from raygnn.models.hetero import Hetero
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.hgt import HGT
from raygnn.models.lightgcn import LightGCN
from raygnn.models.rgcn import RGCN
from raygnn.models.sage import GraphSAGE
from raygnn.models.simple_hgn import SimpleHGN
from raygnn.models.transformer import Transformer

__all__ = [
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
