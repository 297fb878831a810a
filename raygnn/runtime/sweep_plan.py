"""The plan of a sweep, and the config of each trial."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher
from ray.tune.search.search_algorithm import SearchAlgorithm

from raygnn.config import LoadedConfig, load_config
from raygnn.config.run_section import ASHA, MedianStopping, Parameter, Tune
from raygnn.config.source import read_source, to_plain
from raygnn.errors import ConfigError

_NO_SWEEP = ("--tune", "null")


@dataclass(frozen=True)
class SweepPlan:
    """A validated sweep. Crosses process boundaries.

    Attributes:
        loaded: the config that the trials vary.
        source: the config as written, so that references follow a trial's values.
        overrides: of the command line; a trial's come after them.
        environment: variables that the config reads, for processes that do not inherit them.
    """

    loaded: LoadedConfig
    source: Mapping[str, Any] = field(repr=False)  # holds secrets
    overrides: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    @property
    def section(self) -> Tune:
        section = self.loaded.config.tune
        assert section is not None
        return section

    @property
    def num_trials(self) -> int:
        """Trials of the whole sweep: a grid runs `num_samples` times."""
        grids = [len(p.grid) for p in self.section.space.values() if p.grid is not None]
        return self.section.num_samples * math.prod(grids)

    def trial_config(
        self, values: Mapping[str, Any], *, name: str | None, storage_path: str
    ) -> LoadedConfig:
        """The config of one trial: the sweep's with values by dotted path. Without a name, to train
        outside of the sweep. Raises a ConfigError if the combination is invalid.
        """
        for variable, text in self.environment.items():
            os.environ.setdefault(variable, text)
        plain = to_plain(values, [], set())  # samplers draw NumPy's numbers too
        varied = [f"--{path}={json.dumps(value)}" for path, value in plain.items()]
        run: dict[str, Any] = {"name": name, "storage_path": storage_path}
        if name is not None:  # a trial keeps to its own folder, which the sweep has emptied
            run |= {"overwrite": False, "model_uri": None, "logs_uri": None}
        placed = [f"--run.{key}={json.dumps(value)}" for key, value in run.items()]
        overrides = [*self.overrides, *varied, *placed, *_NO_SWEEP]
        loaded = load_config(self.source, overrides, self.loaded.allow_modules)
        return replace(loaded, folder=self.loaded.folder)


def load_sweep(
    config: str | os.PathLike[str] | Mapping[str, Any] | BaseModel,
    overrides: Sequence[str] = (),
    allow_modules: Sequence[str] = (),
) -> SweepPlan:
    """Loads a config with a `tune` section. Raises a ConfigError if it is invalid or lacks it."""
    source = read_source(config)
    loaded = load_config(source, overrides, allow_modules)
    if loaded.config.tune is None:
        raise ConfigError(
            "tune=None is invalid: a sweep needs a search space. Set tune.space, as in "
            "{optimizer.args.lr: {loguniform: [1e-4, 1e-1]}}.",
            id="sweep-no-space",
        )
    return SweepPlan(loaded, source.value, tuple(overrides), loaded.environment)


#: Unit of time of schedulers, reported by `Engine`.
TIME_ATTRIBUTE = "validation"

_NO_END = 2**20  # validations; more rungs than any run has


def search_space(section: Tune) -> dict[str, Any]:
    return {path: _domain(parameter) for path, parameter in section.space.items()}


def _domain(parameter: Parameter) -> Any:
    kind, values = parameter.kind, parameter.values
    if kind == "grid":
        return tune.grid_search(values)
    if kind == "choice":
        return tune.choice(values)
    return getattr(tune, kind)(*values)


def scheduler(section: Tune) -> TrialScheduler:
    chosen = section.scheduler
    if isinstance(chosen, ASHA):
        return AsyncHyperBandScheduler(
            time_attr=TIME_ATTRIBUTE,
            max_t=chosen.max_t or _NO_END,
            grace_period=chosen.grace_period,
            reduction_factor=chosen.reduction_factor,
            brackets=chosen.brackets,
        )
    if isinstance(chosen, MedianStopping):
        return MedianStoppingRule(
            time_attr=TIME_ATTRIBUTE,
            grace_period=chosen.grace_period,
            min_samples_required=chosen.min_samples_required,
        )
    return FIFOScheduler()


def searcher(section: Tune, seed: int, num_concurrent: int) -> SearchAlgorithm | Searcher:
    """The searcher, which draws values; equal values for equal seeds. Each kind takes the number of
    trials at a time differently, because random ones ignore Ray's `max_concurrent_trials`. Raises a
    ConfigError if optuna is requested and not installed.
    """
    if section.searcher == "random":
        return BasicVariantGenerator(max_concurrent=num_concurrent, random_state=seed)
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "tune.searcher='optuna' is invalid: the package optuna is not installed. Run "
            "`pip install optuna`, or set it to random.",
            id="sweep-optuna-missing",
        ) from error
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line per trial, beside ours
    return ConcurrencyLimiter(OptunaSearch(seed=seed), max_concurrent=num_concurrent)
