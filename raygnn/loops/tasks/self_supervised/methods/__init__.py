"""How representations are learned without labels."""

from raygnn.loops.tasks.self_supervised.methods.base import Method, Setting, TwoViews
from raygnn.loops.tasks.self_supervised.methods.contrast import GRACE
from raygnn.loops.tasks.self_supervised.methods.correlation import CCASSG, BarlowTwins
from raygnn.loops.tasks.self_supervised.methods.momentum import BGRL
from raygnn.loops.tasks.self_supervised.methods.reconstruction import (
    FeatureReconstruction,
    GraphMAE,
)

__all__ = [
    "BGRL",
    "CCASSG",
    "GRACE",
    "BarlowTwins",
    "FeatureReconstruction",
    "GraphMAE",
    "Method",
    "Setting",
    "TwoViews",
]
