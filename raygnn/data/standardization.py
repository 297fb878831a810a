"""Scales of features and targets, and frequencies of labels, over the training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics
from raygnn.data.moments import measure

_LEAST_STD = float(np.finfo(np.float32).tiny)  # below it 1 / std is beyond float32
_MANY_ZEROS = 0.1  # share of rows


class Affine(NamedTuple):
    shift: np.ndarray
    factor: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class ColumnScale:
    """Standardization of a dense column: x becomes (x - mean) / std.

    An element with a std of 0, constant in training, becomes 0. Unchanged elements have a mean of 0
    and a std of 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means and {len(self.std)} standard deviations")

    @classmethod
    def of(cls, info: ColumnInfo, measured: ColumnStatistics | None = None) -> ColumnScale | None:
        """The scale of a column; None if the column does not change.

        Sparse columns do not change. Neither do elements of 0 and 1, and those between 0 and 1 that
        are 0 in a tenth of the rows or more: flags, one-hot codes, words of a text and shares
        already have one scale, and rare ones would become large. Nor do elements scaled by a
        transform, and category codes.

        Args:
            measured: statistics of the rows to fit on. None uses all rows.
        """
        measured = measured or info.statistics
        if info.role != "feature" or measured is None:
            return None
        zeros, ones = np.array(measured.num_zeros), np.array(measured.num_ones)
        within = (np.array(measured.low) >= 0) & (np.array(measured.high) <= 1)
        stays = zeros + ones == measured.count
        stays |= within & (zeros >= _MANY_ZEROS * measured.count)
        if info.transforms is not None:
            stays |= np.array(info.transforms.scaled)
        if stays.all():
            return None
        mean, std = np.where(stays, 0.0, measured.mean), np.where(stays, 1.0, measured.std)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    @classmethod
    def of_rows(cls, rows: np.ndarray, weights: np.ndarray | None = None) -> ColumnScale:
        """The scale of finite rows in any order, [num_rows] or [num_rows, width], at least one,
        perhaps with weights, float64 [num_rows].
        """
        if weights is not None:
            columns = rows.reshape(len(rows), -1).astype(np.float64)
            mean = np.average(columns, axis=0, weights=weights)
            std = np.sqrt(np.average(np.square(columns - mean), axis=0, weights=weights))
            return cls(tuple(mean.tolist()), tuple(std.tolist()))
        return cls(*zip(*(each.mean_and_std() for each in measure(rows)), strict=True))

    def affine(self) -> Affine:
        """The float32 form of a scale: x becomes (x - shift) * factor + offset.

        A mean far from 0 is not a float32: `offset` has the remainder of `shift`, so that
        differences between close elements stay exact at any distance from 0.
        """
        mean, factor = np.array(self.mean), self._factor()
        shift = mean.astype(np.float32)
        offset = (shift - mean) * factor
        return Affine(shift, factor.astype(np.float32), offset.astype(np.float32))

    def _factor(self) -> np.ndarray:
        std = np.array(self.std)
        return np.divide(1.0, std, out=np.zeros_like(std), where=std > _LEAST_STD)


#: By name of the node or edge type and by column.
Standardization = Mapping[str, Mapping[str, ColumnScale]]


#: The word of a config for weights that make up for the counts.
BALANCED = "balanced"


@dataclass(frozen=True)
class LabelCounts:
    """Number of training rows of the whole graph, and of each class or with each label."""

    num_nodes: int
    counts: tuple[int, ...]

    @classmethod
    def of_classes(cls, labels: np.ndarray, num_classes: int) -> LabelCounts:
        counts = np.bincount(labels.reshape(-1).astype(np.int64), minlength=num_classes)
        return cls(len(labels), tuple(counts.tolist()))

    @classmethod
    def of_labels(cls, labels: np.ndarray, num_labels: int) -> LabelCounts:
        counts = labels.reshape(len(labels), num_labels).astype(bool).sum(axis=0)
        return cls(len(labels), tuple(counts.tolist()))

    @classmethod
    def sum_of(cls, parts: Sequence[LabelCounts], num_labels: int) -> LabelCounts:
        counts = sum((np.array(part.counts) for part in parts), np.zeros(num_labels, np.int64))
        return cls(sum(part.num_nodes for part in parts), tuple(counts.tolist()))

    def class_weights(self) -> np.ndarray:
        """Weights of classes, float64, so that all classes together weigh the same.

        num_nodes / (occurring classes * nodes of the class), as scikit-learn's
        `compute_class_weight("balanced")`; their mean over the training nodes is 1. A class that
        does not occur weighs 1.
        """
        counts = np.array(self.counts, np.float64)
        weights = np.ones(len(counts))
        present = counts > 0
        weights[present] = self.num_nodes / (present.sum() * counts[present])
        return weights

    def binary_weights(self) -> np.ndarray:
        """Balanced weights without and with each label, float64 [num_labels, 2]."""
        pairs = [LabelCounts(self.num_nodes, (self.num_nodes - n, n)) for n in self.counts]
        return np.stack([pair.class_weights() for pair in pairs])
