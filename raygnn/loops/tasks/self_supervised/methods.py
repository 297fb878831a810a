"""Self-supervised methods, which compare two views of a batch or reconstruct hidden features."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from raygnn.config.section import NonNegativeNumber, PositiveNumber
from raygnn.errors import ConfigError
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.models.encoder import Share, build_norm
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.sparse_input import dense
from raygnn.parallel.sharding import own_part
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.blocks import hetero_blocks_of
from raygnn.sampling.views import (
    drawn,
    drop_edges,
    mask_features,
    places_drawn,
    view_key,
    with_hop_of_seeds,
)

#: One share for both views, or one for each.
Shares = Share | list[Share]


@dataclass(frozen=True)
class Setting:
    """The setting of a method.

    Attributes:
        channels: width of the seeds' embeddings.
        num_features: width of their features, without category codes; 0 without any.
        encoder: with its initial weights.
        build_layer: builds a message passing layer like the encoder's, from embeddings to a width.
    """

    node_type: str
    channels: int
    num_features: int
    encoder: GraphEncoder
    build_layer: Callable[[int], nn.Module]


class Method(nn.Module, ABC):
    """Views of a batch, heads after the encoder, and the loss of their outputs.

    The heads are parameters of the module and train with the encoder.

    Attributes:
        is_joint: the loss of a micro-batch reads rows of all micro-batches of the step.
        extra_hops: additional hops of training batches.
    """

    is_joint: ClassVar[bool] = False
    extra_hops: ClassVar[int] = 0

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.node_type = setting.node_type

    def draw(self, batch: NodeBatch) -> NodeBatch:
        """Adds `views` and `drawn` nodes to a batch. Called in sampler threads."""
        return batch

    def drawn(self, batch: NodeBatch) -> NodeBatch:
        return batch if batch.views else self.draw(batch)

    @abstractmethod
    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        """Inputs of the loss, [num_seeds, channels] each, with gradient.

        `embeddings` are the encoder's, to detect a collapse.
        """

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        raise NotImplementedError(f"{type(self).__name__}.offer")

    @abstractmethod
    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """The summed loss of a batch, and its divisor. `offered`: rows of all batches, if joint."""

    def on_start(self, encoder: GraphEncoder) -> None: ...

    def after_step(self, encoder: GraphEncoder, progress: float) -> None:
        """Called after each step. `progress`: finished share of the run; 0 without a limit."""

    def embed(self, encoder: GraphEncoder, batch: NodeBatch) -> Tensor:
        """[num_seeds, channels], of distinct seeds."""
        rows: Tensor = encoder(batch)[self.node_type]
        return rows


class TwoViews(Method):
    """A method that compares the embeddings of a node in two views of its neighborhood.

    Args:
        drop_edges: share of the edges that a view drops; a list of two has one for each view.
        mask_features: share of the feature columns that are 0 in a view, likewise.
    """

    def __init__(
        self, setting: Setting, drop_edges: Shares = 0.3, mask_features: Shares = 0.3
    ) -> None:
        super().__init__(setting)
        self._drop_edges = _pair("drop_edges", drop_edges)
        self._mask_features = _pair("mask_features", mask_features)

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
        raise ConfigError.invalid(
            f"task.args.method.args.{name}",
            value,
            "there are two views",
            "Set one share for both, or a list of two",
            id="method-views",
        )
    return shares


class GRACE(TwoViews):
    """Contrast of nodes: both views of a node against all other nodes of the step in both views.

    Memory and time of a step grow with the square of its seeds.

    Source: arXiv:2006.04131, equation 1.

    Args:
        hidden_channels: width of the projector's hidden layer. Default: that of the embeddings.
        temperature: divides the cosines.
    """

    is_joint = True

    def __init__(
        self,
        setting: Setting,
        drop_edges: Shares = 0.3,
        mask_features: Shares = 0.3,
        hidden_channels: PositiveInt | None = None,
        temperature: PositiveNumber = 0.5,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        width = setting.channels if hidden_channels is None else hidden_channels
        self.temperature = float(temperature)
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
        with torch.autocast(offered.rows.device.type, enabled=False):
            positive = (views[0] * views[1]).sum(dim=1) / self.temperature
            losses = [
                torch.logsumexp(
                    torch.cat(
                        [
                            one @ every[1 - i].T / self.temperature,
                            (one @ every[i].T / self.temperature).masked_fill(is_self, -torch.inf),
                        ],
                        dim=1,
                    ),
                    dim=1,
                )
                - positive
                for i, one in enumerate(views)
            ]
            return (losses[0] + losses[1]).sum() / 2, float(len(positive))


class BGRL(TwoViews):
    """Bootstrapped graph latents: the embedding of one view predicts a target from the other view.

    The target comes from an exponential moving average of the encoder. Its decay goes from `decay`
    to 1 along half a cosine over the planned steps. There are no negatives. A batch norm and PReLU
    follow the encoder, as in the published encoder.

    Source: arXiv:2102.06514.

    Args:
        hidden_channels: width of the predictor's hidden layer.
        decay: decay of the moving average at the first step.
    """

    def __init__(
        self,
        setting: Setting,
        drop_edges: Shares = 0.3,
        mask_features: Shares = 0.3,
        hidden_channels: PositiveInt = 512,
        decay: Share = 0.99,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        self.decay = float(decay)
        channels = setting.channels
        self.output = nn.Sequential(build_norm("batch", channels), nn.PReLU())
        self.predictor = nn.Sequential(
            nn.Linear(channels, hidden_channels), nn.PReLU(), nn.Linear(hidden_channels, channels)
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
        self._follow(encoder, 1 - (1 - self.decay) * (math.cos(math.pi * progress) + 1) / 2)

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

    def __init__(
        self, setting: Setting, drop_edges: Shares = 0.3, mask_features: Shares = 0.3
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
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


class CCASSG(Correlations):
    """Canonical correlation analysis: equal embeddings in both views, uncorrelated columns.

    With standardized columns: minus the trace of the correlations between the views, plus the
    squared distance of those within each view from the identity.

    Source: arXiv:2106.12484.

    Args:
        decorrelation: weight of the second part.
    """

    products = (_Product(0, 0, False), _Product(1, 1, False), _Product(0, 1, True))

    def __init__(
        self,
        setting: Setting,
        drop_edges: Shares = 0.3,
        mask_features: Shares = 0.3,
        decorrelation: NonNegativeNumber = 1e-3,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        self.decorrelation = float(decorrelation)

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
        return invariance + self.decorrelation * (distances[0] + distances[1])


class BarlowTwins(Correlations):
    """Barlow Twins: correlations between the columns of both views approach the identity.

    Source: Graph Barlow Twins, arXiv:2106.02466, also without a projector.

    Args:
        redundancy: weight of correlations of different columns. Default: 1 over the number of
            columns.
    """

    products = (_Product(0, 0, True), _Product(1, 1, True), _Product(0, 1, False))

    def __init__(
        self,
        setting: Setting,
        drop_edges: Shares = 0.3,
        mask_features: Shares = 0.3,
        redundancy: NonNegativeNumber | None = None,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        chosen = 1 / setting.channels if redundancy is None else redundancy
        self.redundancy = float(chosen)

    def of_products(self, num_seeds: Tensor, *products: Tensor) -> Tensor:
        first, second, between = products
        variances = [(p / num_seeds).clamp(min=_LEAST_VARIANCE) for p in (first, second)]
        correlation = between / num_seeds / torch.outer(variances[0], variances[1]).sqrt()
        diagonal = correlation.diagonal()
        others = correlation.square().sum() - diagonal.square().sum()
        return (1 - diagonal).square().sum() + self.redundancy * others


#: Exponent of the cosine error.
Power = Annotated[float, Field(ge=1)]

# Added to the squared norm of what is decoded: a node whose neighbors are all masked has zeros,
# where the gradient of a cosine has no bound.
_LEAST_NORM = 1e-2


class _Reconstruction(Method):
    def __init__(self, setting: Setting, drop_edges: Share, alpha: Power) -> None:
        super().__init__(setting)
        if not setting.num_features:
            raise ConfigError(
                f"task.args.method is invalid: it reconstructs features, but nodes of type "
                f"{setting.node_type!r} have no numeric ones. Set barlow_twins, cca_ssg, "
                "bgrl or grace.",
                id="method-no-features",
            )
        self._drop_edges = float(drop_edges)
        self.alpha = float(alpha)

    def draw(self, batch: NodeBatch) -> NodeBatch:
        return replace(batch, views=(drop_edges(batch, self._drop_edges, view_key(batch, 0)),))

    def features(self, encoder: GraphEncoder, batch: NodeBatch) -> Tensor:
        """[num_nodes, num_features] of all nodes of the seeds' type, without categories."""
        x = dense(batch.nodes[self.node_type].columns["x"])
        if self.node_type not in encoder.categories:
            return x
        numbers: Tensor = encoder.categories[self.node_type].numbers
        return x[:, numbers]

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        found, features = (in_full_precision(rows[name]) for name in ("found", "features"))
        unit = found / (found.square().sum(dim=1, keepdim=True) + _LEAST_NORM**2).sqrt()
        cosine = (unit * functional.normalize(features)).sum(dim=1)
        error = (1 - cosine).clamp(min=0) ** self.alpha
        return error.sum(), float(len(error))


class GraphMAE(_Reconstruction):
    """Masked autoencoder: reconstructs the features of masked nodes from their neighborhood.

    Masked nodes have a learned token as features. Their embeddings are set to 0 before a message
    passing layer like the encoder's decodes them from the neighbors' embeddings. Sampled training
    batches have one more hop, with the first fanout.

    Source: arXiv:2205.10803.

    Args:
        mask: share of masked nodes; the loss is on the seeds among them.
        replace: share of the masked nodes with another node's features instead of the token.
        alpha: power of the cosine error.
        drop_edges: share of dropped edges.
    Raises:
        ConfigError: the nodes have no features.
    """

    extra_hops = 1

    def __init__(
        self,
        setting: Setting,
        mask: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        replace: Share = 0.05,
        alpha: Power = 3.0,
        drop_edges: Share = 0.0,
    ) -> None:
        super().__init__(setting, drop_edges, alpha)
        self._mask = float(mask)
        self._replace = float(replace)
        width = self._input_width(setting)
        self.token = nn.Parameter(torch.zeros(width))
        self.to_decoder = nn.Linear(setting.channels, setting.channels, bias=False)
        self.decoder = setting.build_layer(setting.num_features)

    @staticmethod
    def _input_width(setting: Setting) -> int:
        categories = setting.encoder.categories
        if setting.node_type not in categories:
            return setting.num_features
        layer = categories[setting.node_type]
        return setting.num_features + layer.codes.numel()

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        batch = self.drawn(batch)
        (view,) = batch.views
        is_masked = self._is_masked(batch)
        masked = self._with_masked(view, is_masked, batch.drawn)
        encoded = encoder(with_hop_of_seeds(masked))
        embeddings = encoded[self.node_type]
        inputs = {name: self.to_decoder(rows) for name, rows in encoded.items()}
        hidden = is_masked[: len(embeddings)].unsqueeze(1)
        inputs[self.node_type] = inputs[self.node_type].masked_fill(hidden, 0)
        decoded = self.decoder(inputs, hetero_blocks_of(view)[-1:])[self.node_type]
        chosen = batch.drawn["masked seeds"]
        return {
            "embeddings": embeddings[chosen].detach(),
            "found": decoded[chosen],
            "features": self.features(encoder, batch)[chosen],
        }

    def draw(self, batch: NodeBatch) -> NodeBatch:
        batch = super().draw(batch)
        nodes, seeds = batch.nodes[self.node_type], batch.seed_index
        is_masked = self._is_masked(batch)
        masks = {"masked seeds": seeds[is_masked[seeds]]}
        if self._replace:
            swapped = is_masked & drawn(nodes.n_id, self._replace, view_key(batch, 2))
            (rows,) = swapped.nonzero(as_tuple=True)
            others = places_drawn(nodes.n_id[rows], len(nodes.n_id), view_key(batch, 3))
            masks |= {"swapped": rows, "swapped for": others}
        return replace(batch, drawn=masks)

    def _is_masked(self, batch: NodeBatch) -> Tensor:
        return drawn(batch.nodes[self.node_type].n_id, self._mask, view_key(batch, 1))

    def _with_masked(
        self, batch: NodeBatch, is_masked: Tensor, found: Mapping[str, Tensor]
    ) -> NodeBatch:
        nodes = batch.nodes[self.node_type]
        x = dense(nodes.columns["x"])
        shown = torch.where(is_masked.unsqueeze(1), self.token.to(x.dtype), x)
        if self._replace:
            others = x[found["swapped for"]].to(shown.dtype)
            shown = shown.index_copy(0, found["swapped"], others)
        changed = {**batch.nodes}
        changed[self.node_type] = replace(nodes, columns={**nodes.columns, "x": shown})
        return replace(batch, nodes=changed)


class FeatureReconstruction(_Reconstruction):
    """Denoising: reconstructs the features of a node from its embedding in a view.

    The view drops edges and hides feature columns. A perceptron decodes.

    Args:
        drop_edges: share of dropped edges.
        mask_features: share of the feature columns that are 0.
        hidden_channels: width of the decoder's hidden layer. Default: that of the embeddings.
        alpha: power of the cosine error.
    Raises:
        ConfigError: the nodes have no features.
    """

    def __init__(
        self,
        setting: Setting,
        drop_edges: Share = 0.3,
        mask_features: Share = 0.5,
        hidden_channels: PositiveInt | None = None,
        alpha: Power = 3.0,
    ) -> None:
        super().__init__(setting, drop_edges, alpha)
        self._mask_features = float(mask_features)
        width = setting.channels if hidden_channels is None else hidden_channels
        self.decoder = nn.Sequential(
            nn.Linear(setting.channels, width), nn.PReLU(), nn.Linear(width, setting.num_features)
        )

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        (view,) = self.drawn(batch).views
        view = mask_features(view, self._mask_features, view_key(batch, 1))
        embeddings = self.embed(encoder, view)
        return {
            "embeddings": embeddings.detach(),
            "found": self.decoder(embeddings),
            "features": self.features(encoder, batch)[batch.seed_index],
        }
