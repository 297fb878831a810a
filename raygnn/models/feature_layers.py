"""Layers between stored features and an encoder: category embeddings and crossed features."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle


class CrossNetwork(nn.Module):
    """Layers x_{l+1} = x_0 * (W x_l + b) + x_l. Each raises the polynomial degree by one.

    Args:
        channels: width of input and output.
        rank: writes W as the product of two narrow matrices; None is a full matrix.

    Source: DCN V2, arXiv:2008.13535, equations 1 and 2.
    """

    def __init__(self, channels: int, num_layers: int = 2, rank: int | None = None) -> None:
        super().__init__()
        layers = nn.ModuleList(_product(channels, rank) for _ in range(num_layers))
        self.cross = nn.ModuleDict({"layers": layers})  # names in saved models

    @property
    def layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.cross["layers"]  # type: ignore[assignment]
        return layers

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.parameters()).dtype)
        crossed = x
        for layer in self.layers:
            crossed = x * layer(crossed) + crossed
        return crossed


def _product(channels: int, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(channels, channels)
    return nn.Sequential(nn.Linear(channels, rank, bias=False), nn.Linear(rank, channels))


_MAX_CHANNELS = 50


def embedding_channels(num_codes: int) -> int:
    """Width of a category's embedding, by the number of its values.

    Source: `emb_sz_rule` of fastai's tabular models, with the bound of 50 of its first version.
    """
    return min(_MAX_CHANNELS, round(1.6 * num_codes**0.56))


class CategoryInputs(nn.Module):
    """Replaces elements that contain category codes by embeddings.

    A row becomes its other elements in order, then the embeddings: learned rows divided by the root
    of their width. They start with unit length on average. The embedding of 0 (rare and unknown
    values) starts as zeros, so that values unseen in training add nothing.

    Adam changes each element by about the learning rate per step. Undivided rows would turn faster
    the wider they are, and overfit to rare training values.

    Args:
        in_channels: width of the input.
        num_codes: number of codes, by position of a coded element.
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
        return len(self.numbers) + sum(each.embedding_dim for each in self._embeddings())

    def forward(self, x: Tensor) -> Tensor:
        codes = x[:, self.codes].to(torch.int64)
        parts = [
            embedding(codes[:, i]) / embedding.embedding_dim**0.5
            for i, embedding in enumerate(self._embeddings())
        ]
        return torch.cat([x[:, self.numbers].to(parts[0].dtype), *parts], dim=1)

    def _embeddings(self) -> list[nn.Embedding]:
        return [each for each in self.embeddings if isinstance(each, nn.Embedding)]


def category_inputs(bundle: Bundle, feature: str) -> dict[str, CategoryInputs]:
    inputs = {}
    for node_type in bundle.node_types:
        info = bundle.columns(node_type).get(feature)
        if info is not None and info.transforms is not None and info.transforms.num_codes:
            inputs[node_type] = CategoryInputs(info.shape[0], info.transforms.num_codes)
    return inputs
