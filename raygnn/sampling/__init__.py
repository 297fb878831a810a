from __future__ import annotations

from raygnn.sampling.batch import Batch, LinkBatch, NodeBatch
from raygnn.sampling.blocks import Block, HeteroBlock, blocks_of, hetero_blocks_of
from raygnn.sampling.link_loader import LinkLoader, LinkPlan
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore

__all__ = [
    "Batch",
    "Block",
    "FeatureStore",
    "GraphStore",
    "HeteroBlock",
    "LinkBatch",
    "LinkLoader",
    "LinkPlan",
    "LocalFeatureStore",
    "LocalGraphStore",
    "NeighborLoader",
    "NeighborSampler",
    "NodeBatch",
    "SparseFeatures",
    "blocks_of",
    "hetero_blocks_of",
]
