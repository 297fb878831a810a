from raygnn.loops.tasks.self_supervised.methods.base import Method, Setting, TwoViews
from raygnn.loops.tasks.self_supervised.methods.reconstruction import (
    FeatureReconstruction,
    GraphMAE,
)
from raygnn.loops.tasks.self_supervised.methods.two_views import BGRL, CCASSG, GRACE, BarlowTwins

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
