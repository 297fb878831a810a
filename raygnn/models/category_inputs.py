"""The model's input layer for categories: learned rows in the place of their numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle

_MAX_CHANNELS = 50


def embedding_channels(num_codes: int) -> int:
    """Width of the embedding of a category, by the number of its values.

    Source: `emb_sz_rule` of fastai's tabular models; 50 is the bound of its first version.
    """
    return min(_MAX_CHANNELS, round(1.6 * num_codes**0.56))


class CategoryInputs(nn.Module):
    """Replaces elements that hold the number of a category by embeddings.

    A row becomes its other elements, in their order, then the embeddings, which are learned rows
    divided by the root of their width. They start with unit length on average; that of 0, rare and
    unknown values, starts as zeros: what training has never met adds nothing.

    Adam changes each element by about the learning rate in a step, so undivided rows would turn
    faster the wider they are, and learn the training rows of rare values by heart.

    Args:
        in_channels: width of the rows that are read.
        num_codes: by position in a row that holds the number of a category, how many there are.
    """

    numbers: Tensor
    codes: Tensor

    def __init__(self, in_channels: int, num_codes: Mapping[int, int]) -> None:
        super().__init__()
        positions = sorted(num_codes)
        others = [i for i in range(in_channels) if i not in num_codes]
        for name, columns in (("numbers", others), ("codes", positions)):
            self.register_buffer(name, torch.tensor(columns, dtype=torch.int64), persistent=False)
        self.embeddings = nn.ModuleList(
            nn.Embedding(num_codes[i], embedding_channels(num_codes[i])) for i in positions
        )
        for embedding in self._embeddings():
            with torch.no_grad():
                embedding.weight[0] = 0

    @property
    def out_channels(self) -> int:
        """Width of the rows that it gives."""
        return len(self.numbers) + sum(each.embedding_dim for each in self._embeddings())

    def forward(self, x: Tensor) -> Tensor:
        """[num_rows, in_channels] to [num_rows, out_channels]."""
        codes = x[:, self.codes].to(torch.int64)
        parts = [
            embedding(codes[:, i]) / embedding.embedding_dim**0.5
            for i, embedding in enumerate(self._embeddings())
        ]
        return torch.cat([x[:, self.numbers].to(parts[0].dtype), *parts], dim=1)

    def _embeddings(self) -> list[nn.Embedding]:
        return [each for each in self.embeddings if isinstance(each, nn.Embedding)]


def category_inputs(bundle: Bundle, feature: str) -> dict[str, CategoryInputs]:
    """The input layers of a graph, by node type whose feature holds numbers of categories."""
    found = {}
    for node_type in bundle.node_types:
        info = bundle.columns(node_type).get(feature)
        if info is not None and info.transforms is not None and info.transforms.num_codes:
            found[node_type] = CategoryInputs(info.shape[0], info.transforms.num_codes)
    return found
