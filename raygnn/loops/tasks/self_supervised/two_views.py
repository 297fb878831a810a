"""Methods that compare the embeddings of two views of a batch."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from raygnn.config.arguments import Arguments
from raygnn.config.section import NonNegativeNumber, PositiveNumber
from raygnn.errors import ConfigError
from raygnn.loops.tasks.self_supervised.methods import Method, Setting
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.models.encoder import Share, build_norm
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.parallel.sharding import own_part
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.views import drop_edges, mask_features, view_key

#: One share for both views, or one for each.
Shares = Share | list[Share]


class ViewOptions(Arguments):
    """Arguments of all methods with two views.

    Attributes:
        drop_edges: share of the edges that a view drops; a list of two has one for each view.
        mask_features: share of the feature columns that are 0 in a view, likewise.
    """

    drop_edges: Shares = 0.3
    mask_features: Shares = 0.3


class TwoViews(Method):
    """A method that compares the embeddings of a node in two views of its neighborhood."""

    Options: ClassVar[type[Arguments]] = ViewOptions

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        self._drop_edges = _pair("drop_edges", self.options.drop_edges)
        self._mask_features = _pair("mask_features", self.options.mask_features)

    def draw(self, batch: NodeBatch) -> NodeBatch:
        shares = enumerate(self._drop_edges)
        views = (drop_edges(batch, share, view_key(batch, 2 * i)) for i, share in shares)
        return replace(batch, views=tuple(views))

    def views(self, batch: NodeBatch) -> tuple[NodeBatch, NodeBatch]:
        first, second = (
            mask_features(view, self._mask_features[i], view_key(batch, 2 * i + 1))
            for i, view in enumerate(self.drawn(batch).views)
        )
        return first, second


def _pair(name: str, value: Shares) -> list[Share]:
    shares = value if isinstance(value, list) else [value, value]
    if len(shares) != 2:
        key, remedy = f"task.args.method.args.{name}", "Set one share for both, or a list of two"
        raise ConfigError.invalid(key, value, "there are two views", remedy, id="method-views")
    return shares


class GRACEOptions(ViewOptions):
    """Arguments of `GRACE`.

    Attributes:
        hidden_channels: width of the projector's hidden layer. Default: that of the embeddings.
        temperature: divides the cosines.
    """

    hidden_channels: PositiveInt | None = None
    temperature: PositiveNumber = 0.5


class GRACE(TwoViews):
    """Contrast of nodes: both views of a node against all other nodes of the step in both views.

    Memory and time of a step grow with the square of its seeds.

    Source: arXiv:2006.04131, equation 1.
    """

    is_joint = True
    Options = GRACEOptions

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        width = self.options.hidden_channels or setting.channels
        self.projector = nn.Sequential(
            nn.Linear(setting.channels, width), nn.ELU(), nn.Linear(width, setting.channels)
        )

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        embeddings = [self.embed(encoder, view) for view in self.views(batch)]
        first, second = (
            functional.normalize(in_full_precision(self.projector(rows))) for rows in embeddings
        )
        return {"embeddings": embeddings[0].detach(), "view_1": first, "view_2": second}

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        return Candidates(
            rows=torch.cat([rows["view_1"], rows["view_2"]], dim=1), ids=batch.input_id
        )

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        assert offered is not None
        views = rows["view_1"], rows["view_2"]
        every = offered.rows.chunk(2, dim=1)
        is_self = batch.input_id.unsqueeze(1) == offered.ids
        temperature = self.options.temperature
        with torch.autocast(offered.rows.device.type, enabled=False):
            positive = (views[0] * views[1]).sum(dim=1) / temperature
            losses = [
                torch.logsumexp(
                    torch.cat(
                        [
                            one @ every[1 - i].T / temperature,
                            (one @ every[i].T / temperature).masked_fill(is_self, -torch.inf),
                        ],
                        dim=1,
                    ),
                    dim=1,
                )
                - positive
                for i, one in enumerate(views)
            ]
            return (losses[0] + losses[1]).sum() / 2, float(len(positive))


class BGRLOptions(ViewOptions):
    """Arguments of `BGRL`.

    Attributes:
        hidden_channels: width of the predictor's hidden layer.
        decay: decay of the moving average at the first step.
    """

    hidden_channels: PositiveInt = 512
    decay: Share = 0.99


class BGRL(TwoViews):
    """Bootstrapped graph latents: the embedding of one view predicts a target from the other view.

    The target comes from an exponential moving average of the encoder. Its decay goes from `decay`
    to 1 along half a cosine over the planned steps. There are no negatives. A batch norm and PReLU
    follow the encoder, as in the published encoder.

    Source: arXiv:2102.06514.
    """

    Options = BGRLOptions

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        channels, width = setting.channels, self.options.hidden_channels
        self.output = nn.Sequential(build_norm("batch", channels), nn.PReLU())
        self.predictor = nn.Sequential(
            nn.Linear(channels, width), nn.PReLU(), nn.Linear(width, channels)
        )
        self.target_encoder = copy.deepcopy(setting.encoder).requires_grad_(False)
        self.target_output = copy.deepcopy(self.output).requires_grad_(False)

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        views = self.views(batch)
        embeddings = [self.embed(encoder, view) for view in views]
        predicted = [self.predictor(self.output(rows)) for rows in embeddings]
        with torch.no_grad():
            targets = [self.target_output(self.embed(self.target_encoder, v)) for v in views]
        return {
            "embeddings": embeddings[0].detach(),
            "predicted_1": predicted[0],
            "predicted_2": predicted[1],
            "target_1": targets[0],
            "target_2": targets[1],
        }

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """The cosine distance of both predictions from the other view's target, in [0, 4]."""
        distances = [
            1 - functional.cosine_similarity(in_full_precision(one), in_full_precision(other))
            for one, other in (
                (rows["predicted_1"], rows["target_2"]),
                (rows["predicted_2"], rows["target_1"]),
            )
        ]
        return (distances[0] + distances[1]).sum(), float(len(distances[0]))

    def on_start(self, encoder: GraphEncoder) -> None:
        self._follow(encoder, 0.0)

    def after_step(self, encoder: GraphEncoder, progress: float) -> None:
        self._follow(encoder, 1 - (1 - self.options.decay) * (math.cos(math.pi * progress) + 1) / 2)

    @torch.no_grad()
    def _follow(self, encoder: GraphEncoder, decay: float) -> None:
        for target, online in ((self.target_encoder, encoder), (self.target_output, self.output)):
            for moved, weight in zip(target.parameters(), online.parameters(), strict=True):
                own_part(moved).lerp_(own_part(weight.detach()), 1 - decay)


_LEAST_VARIANCE = 1e-8


class _Product(NamedTuple):
    """A sum over seeds of products of deviations, of two views and some columns.

    Attributes:
        is_diagonal: only of equal columns: [channels] instead of [channels, channels].
    """

    one: int
    other: int
    is_diagonal: bool


class Correlations(TwoViews):
    """A loss of the covariances within and between two views.

    They include all seeds of the step: each micro-batch offers its means and sums of products as
    one row, from which those of the step follow. So the loss does not depend on the division into
    micro-batches.

    Source: of the sums, Chan, Golub and LeVeque, "Updating Formulae", 1979, equation 2.1b.
    """

    is_joint = True

    products: ClassVar[tuple[_Product, ...]]

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        self.channels = setting.channels

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        first, second = (self.embed(encoder, view) for view in self.views(batch))
        return {"embeddings": first.detach(), "view_1": first, "view_2": second}

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        """One row: number of seeds, means of both views, and products."""
        views = [in_full_precision(rows[name]) for name in ("view_1", "view_2")]
        with torch.autocast(views[0].device.type, enabled=False):
            means = [view.mean(dim=0) for view in views]
            centered = [view - mean for view, mean in zip(views, means, strict=True)]
            sums = [
                (centered[p.one] * centered[p.other]).sum(dim=0)
                if p.is_diagonal
                else centered[p.one].T @ centered[p.other]
                for p in self.products
            ]
        number = views[0].new_tensor([len(views[0])])
        row = torch.cat([number, *means, *(part.flatten() for part in sums)])
        index = torch.tensor([batch.index], device=row.device)
        return Candidates(rows=row.unsqueeze(0), ids=index)

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """The loss of the step, times the seeds of the batch."""
        assert offered is not None
        weight = float(len(rows["view_1"]))
        with torch.autocast(offered.rows.device.type, enabled=False):
            num_seeds, totals = self._of_step(offered)
            return self.of_products(num_seeds, *totals) * weight, weight

    @abstractmethod
    def of_products(self, num_seeds: Tensor, *products: Tensor) -> Tensor: ...

    def _of_step(self, offered: Candidates) -> tuple[Tensor, list[Tensor]]:
        d = self.channels
        rows = offered.rows[offered.ids.argsort()]  # the order of ranks changes no bit
        widths = [d if p.is_diagonal else d * d for p in self.products]
        number, *parts = rows.split([1, d, d, *widths], dim=1)
        num_seeds = number.sum()
        means, sums = parts[:2], parts[2:]
        deviations = [mean - (number * mean).sum(dim=0) / num_seeds for mean in means]
        totals = []
        for product, part in zip(self.products, sums, strict=True):
            one, other = number * deviations[product.one], deviations[product.other]
            between = (one * other).sum(dim=0) if product.is_diagonal else one.T @ other
            totals.append(part.sum(dim=0).view_as(between) + between)
        return num_seeds, totals


class CCASSGOptions(ViewOptions):
    """Arguments of `CCASSG`.

    Attributes:
        decorrelation: weight of the squared distance from the identity.
    """

    decorrelation: NonNegativeNumber = 1e-3


class CCASSG(Correlations):
    """Canonical correlation analysis: equal embeddings in both views, uncorrelated columns.

    With standardized columns: minus the trace of the correlations between the views, plus the
    squared distance of those within each view from the identity.

    Source: arXiv:2106.12484.
    """

    Options = CCASSGOptions
    products = (_Product(0, 0, False), _Product(1, 1, False), _Product(0, 1, True))

    def of_products(self, num_seeds: Tensor, *products: Tensor) -> Tensor:
        first, second, between = products
        scale = (num_seeds - 1).clamp(min=1)
        stds = [(p.diagonal() / scale).clamp(min=_LEAST_VARIANCE).sqrt() for p in (first, second)]
        invariance = -(between / (stds[0] * stds[1])).sum() / num_seeds
        identity = torch.eye(self.channels, device=first.device)
        distances = [
            (product / torch.outer(std, std) / num_seeds - identity).square().sum()
            for product, std in zip((first, second), stds, strict=True)
        ]
        return invariance + self.options.decorrelation * (distances[0] + distances[1])


class BarlowTwinsOptions(ViewOptions):
    """Arguments of `BarlowTwins`.

    Attributes:
        redundancy: weight of correlations of different columns. Default: 1 over the number of
            columns.
    """

    redundancy: NonNegativeNumber | None = None


class BarlowTwins(Correlations):
    """Barlow Twins: correlations between the columns of both views approach the identity.

    Source: Graph Barlow Twins, arXiv:2106.02466, also without a projector.
    """

    Options = BarlowTwinsOptions
    products = (_Product(0, 0, True), _Product(1, 1, True), _Product(0, 1, False))

    def of_products(self, num_seeds: Tensor, *products: Tensor) -> Tensor:
        first, second, between = products
        variances = [(p / num_seeds).clamp(min=_LEAST_VARIANCE) for p in (first, second)]
        correlation = between / num_seeds / torch.outer(variances[0], variances[1]).sqrt()
        diagonal = correlation.diagonal()
        others = correlation.square().sum() - diagonal.square().sum()
        redundancy = self.options.redundancy
        weight = 1 / self.channels if redundancy is None else redundancy
        return (1 - diagonal).square().sum() + weight * others
