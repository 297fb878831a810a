"""PyG's explainers of a GNN whose edges and columns are masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.config import ModelConfig

from raygnn.inference.explain.masked_model import MaskedModel

_EPOCHS, _LR = 40, 0.25
# Without PyG's entropy, which moves masks to 0 or 1 before the loss says which: what is largest is
# chosen afterwards. docs/decisions.md has the figures.
_COEFFICIENTS = {"edge_size": 1.0, "node_feat_size": 0.5, "edge_ent": 0.0, "node_feat_ent": 0.0}
_MODES = {
    "multi_class": ModelConfig("multiclass_classification", "node", "raw"),
    "multi_label": ModelConfig("binary_classification", "node", "probs"),
    "regression": ModelConfig("regression", "node", "raw"),
}


class _GNNExplainer(GNNExplainer):
    """GNNExplainer, arXiv:1903.03894, with equal initial masks: equal edges get equal importance,
    and inputs that do not affect the prediction keep a mask of 0. The size of a neighborhood does
    not change the cost of an edge.
    """

    def __init__(self, group: Tensor) -> None:
        """`group`: int64 [num_elements], column of each element; elements of one have one mask."""
        super().__init__(epochs=_EPOCHS, lr=_LR, edge_reduction="mean", **_COEFFICIENTS)
        self._group = group
        self._first = torch.tensor(
            [group.tolist().index(i) for i in dict.fromkeys(group.tolist())], dtype=torch.int64
        )

    def _initialize_homogeneous_masks(
        self, node_mask_type: Any, edge_mask_type: Any, n: int, f: int, e: int, device: Any
    ) -> None:
        def mask(kind: Any, *shape: int) -> nn.Parameter | None:
            return None if kind is None else nn.Parameter(torch.zeros(*shape, device=device))

        self.node_mask, self.edge_mask = mask(node_mask_type, 1, f), mask(edge_mask_type, e)
        if self.node_mask is not None:
            self.node_mask.register_hook(self._tied)

    def _tied(self, gradient: Tensor) -> Tensor:
        """Gives all elements of a column the same gradient, so that their masks stay equal."""
        group = self._group.to(gradient.device)
        total = gradient.new_zeros(len(self._first)).index_add(0, group, gradient[0])
        return total[group][None]

    def _add_mask_regularization(
        self, loss: Tensor, mask: Tensor, hard_mask: Tensor, *coefficients: Any
    ) -> Tensor:
        if mask is self.node_mask:  # a column costs the same whatever its width
            mask, hard_mask = mask[:, self._first], hard_mask[:, self._first]
        if not hard_mask.any():  # PyG would take the mean of no elements
            return loss
        out: Tensor = super()._add_mask_regularization(loss, mask, hard_mask, *coefficients)
        return out


def build_explainer(masked: MaskedModel, problem: str, group: Tensor) -> Explainer:
    return Explainer(
        masked,
        algorithm=_GNNExplainer(group),
        explanation_type="phenomenon" if problem == "multi_class" else "model",
        model_config=_MODES[problem],
        node_mask_type="common_attributes" if masked.elements else None,
        edge_mask_type="object" if masked.masks_edges else None,
    )


def importance(made: Any, name: str) -> np.ndarray:
    """float32 by edge, or by element of a row, summed over the rows of an attribution."""
    mask = made.get(name)
    if mask is None:
        return np.zeros(made.edge_index.shape[1] if name == "edge_mask" else 0, np.float32)
    of_each = mask.detach().abs()
    total: Tensor = of_each.sum(dim=0) if of_each.dim() == 2 else of_each
    return total.float().cpu().numpy()
