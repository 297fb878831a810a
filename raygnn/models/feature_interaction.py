"""What crosses a node's features with each other before an encoder reads them: DCN-v2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raygnn.models.arguments import check_positive


class CrossNetwork(nn.Module):
    """Layers x_{l+1} = x_0 * (W x_l + b) + x_l, each of which raises the degree by one.

    Args:
        channels: width of a row, before and after.
        rank: of W, as the product of two narrow matrices; None is a full matrix.
    Raises:
        ConfigError: a number is less than 1.
    Source: DCN V2, arXiv:2008.13535, equations 1 and 2.
    """

    def __init__(self, channels: int, num_layers: int = 2, rank: int | None = None) -> None:
        super().__init__()
        check_positive(channels=channels, num_layers=num_layers)
        self.layers = nn.ModuleList(_product(channels, rank) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """[num_rows, channels] to [num_rows, channels]."""
        crossed = x
        for layer in self.layers:
            crossed = x * layer(crossed) + crossed
        return crossed


class FeatureInteraction(nn.Module):
    """A cross network, alone or with a perceptron behind it or beside it.

    Args:
        in_channels: width of the rows that are read.
        num_layers, rank: see `CrossNetwork`.
        deep: widths of the perceptron's layers, each a linear map and ReLU; none leaves it out.
        is_parallel: the perceptron reads the features, and a row is what both give, one after the
            other; else it reads what the cross network gives.
    Raises:
        ConfigError: a number is less than 1.
    Source: DCN V2, arXiv:2008.13535, figure 1.
    """

    def __init__(
        self,
        in_channels: int,
        num_layers: int = 2,
        rank: int | None = None,
        deep: Sequence[int] = (),
        *,
        is_parallel: bool = False,
    ) -> None:
        super().__init__()
        self.cross = CrossNetwork(in_channels, num_layers, rank)
        widths = [in_channels, *deep]
        parts: list[nn.Module] = []
        for i, width in enumerate(deep):
            check_positive(**{f"deep.{i}": width})
            parts += [nn.Linear(widths[i], width), nn.ReLU()]
        self.deep = nn.Sequential(*parts)
        self._is_parallel = is_parallel
        self.out_channels = in_channels + widths[-1] if is_parallel else widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """[num_rows, in_channels] to [num_rows, out_channels]."""
        x = x.to(next(self.parameters()).dtype)
        crossed = self.cross(x)
        if self._is_parallel:
            return torch.cat([crossed, self.deep(x)], dim=-1)
        out: Tensor = self.deep(crossed)
        return out


def _product(channels: int, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(channels, channels)
    check_positive(rank=rank)
    return nn.Sequential(nn.Linear(channels, rank, bias=False), nn.Linear(rank, channels))
