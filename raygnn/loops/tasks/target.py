"""Targets of tasks, which the driver reads: arguments and labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from raygnn.config import Config, LoadedConfig
from raygnn.config.arguments import Arguments, validated_arguments
from raygnn.config.loader_section import TemporalSampling
from raygnn.config.registry import TASK_TARGETS
from raygnn.config.section import Rule, broken
from raygnn.data.bundle import Bundle
from raygnn.data.fit_rows import FitRows
from raygnn.data.partition.part import Pairs
from raygnn.errors import Problem, shown
from raygnn.loops.model_spec import Output


class TaskArguments(Arguments):
    """`task.args`. A task adds fields with defaults.

    Attributes:
        task: short name of the task.
        feature: feature column that the model reads.
        edge_feature: edge column that the model reads as `edge_attr`. Default: `edge_attr`, if the
            model reads edge features.
        edge_weight: edge column that scales each message, for GCN, LightGCN and your own modules.
    """

    task: ClassVar[str]

    feature: str = "x"
    edge_feature: str | None = None
    edge_weight: str | None = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Self:
        """Validates `task.args`. Raises a ConfigError for unknown or invalid ones."""
        return validated_arguments(cls, args, cls.task, "task.args", "task")


class DeclaredTimes(NamedTuple):
    """Tables of a graph that have times.

    Attributes:
        has_any: nodes or edges have times.
        tables: whether a training table has times, by name.
        edges: whether edges with labels have times, by edge type `src__rel__dst`.
    """

    has_any: bool
    tables: Mapping[str, bool]
    edges: Mapping[str, bool]


class TaskTarget(ABC):
    """The learning target in a graph: labels, splits or links, and the model's output.

    The driver makes one to check data and report findings, and each training rank to learn from.
    Inference makes none.
    """

    Arguments: ClassVar[type[TaskArguments]]

    #: Names of the metrics of a run without `metrics`, by problem.
    default_metrics: ClassVar[Mapping[str, Sequence[str]]]

    #: Prefixes of metrics that the task logs in addition to `metrics`.
    own_metrics: ClassVar[tuple[str, ...]] = ()

    #: The records of what a model gives that no other task has.
    output_class: ClassVar[type[Output]]

    #: Keys of the config that the task excludes.
    rules: ClassVar[tuple[Rule, ...]] = ()

    arguments: TaskArguments

    #: The model's output, as far as it does not depend on the losses.
    output: Output

    @classmethod
    def problems(cls, args: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
        """Possible problems with unvalidated `args`, each with a likely number of outputs."""
        return [(problem, 1) for problem in cls.default_metrics]

    @classmethod
    def learns_times(cls, config: Config, times: DeclaredTimes) -> bool:
        """Whether the task learns rows or edges as of their times."""
        return False

    @classmethod
    def defaults(cls, config: Config, times: DeclaredTimes) -> dict[str, dict[str, Any]]:
        """Values of keys that the config leaves out, by section.

        For rows or edges with times, sampling becomes temporal, takes the latest neighbors, and
        gives each row its own neighborhood, so that predictions do not depend on other rows of a
        batch. `sampling.temporal: null` turns all of it off.
        """
        sampling = config.sampling
        is_off = sampling.temporal is None and "temporal" in sampling.model_fields_set
        if is_off or sampling.is_full or sampling.ppr is not None:
            return {}
        if not times.has_any or not cls.learns_times(config, times):
            return {}
        temporal = sampling.temporal or TemporalSampling()
        draws = sampling.is_labor or sampling.weight is not None
        if "strategy" not in temporal.model_fields_set and not draws:
            temporal = temporal.model_copy(update={"strategy": "last"})
        disjoint = sampling.disjoint or "disjoint" not in sampling.model_fields_set
        return {"sampling": {"temporal": temporal, "disjoint": disjoint}}

    @classmethod
    def problems_with(cls, config: Config) -> list[Problem]:
        """Broken `rules`, with the values that break them."""
        return [
            replace(problem, shown=shown(reduce(getattr, map(str, problem.path), config)))
            for problem in broken(config, cls.rules)
        ]

    @classmethod
    def pairs_read(cls, bundle: Bundle, arguments: Any) -> Pairs | None:
        """Edge data that the target needs complete, also in a partitioned graph.

        Args:
            bundle: types and columns, possibly without rows.
        Returns:
            Edge types whose pairs it reads, with their features. Null for targets without pairs and
            label edges.
        """
        return None

    @classmethod
    @abstractmethod
    def find(cls, bundle: Bundle, config: Config, arguments: Any) -> Self:
        """Determines what arguments and config leave open, and checks the rest.

        Raises:
            ConfigError: `task.args` or the config name something that the graph lacks.
            DataError: there is nothing to learn, or a split is empty.
        """

    @classmethod
    def of(cls, bundle: Bundle, config: Config, arguments: Any, output: Any) -> Self:
        """The target of a known output, such as that of a saved model."""
        return cls.find(bundle, config, arguments)

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        """Rows for standardization and transforms."""
        return FitRows()

    def reads_times(self) -> bool:
        """Whether the model reads times relative to its seeds' by default."""
        return False

    def training_times(self, bundle: Bundle, config: Config) -> np.ndarray | None:
        return None

    @property
    def num_past_columns(self) -> int:
        """Columns of past labels that the model reads."""
        return 0

    def trained_output(self, loaded: LoadedConfig) -> Output:
        """`output`, completed from the losses."""
        return self.output

    def summary(self, bundle: Bundle) -> Iterable[str]:
        return ()


def target_class(task: str) -> type[TaskTarget] | None:
    """The target of `task.type`; None for a user's own task."""
    path = TASK_TARGETS.get(task)
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    target: type[TaskTarget] = getattr(import_module(module), name)
    return target


def target_classes() -> list[type[TaskTarget]]:
    return [target for task in TASK_TARGETS if (target := target_class(task)) is not None]


def output_classes(task: str = "") -> list[type[Output]]:
    """The classes of a task's output; of all tasks for a user's own."""
    target = target_class(task)
    targets = target_classes() if target is None else [target]
    return list(dict.fromkeys(target.output_class for target in targets))
