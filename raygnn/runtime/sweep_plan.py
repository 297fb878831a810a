"""The plan of a sweep, and the config of each trial."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from raygnn.config.arguments import section_of
from raygnn.config.components import resolve
from raygnn.config.loader_section import num_hops, with_fanouts
from raygnn.config.run_section import ASHA, MedianStopping, Parameter, Tune
from raygnn.config.source import read_source, to_plain
from raygnn.errors import ConfigError

_NO_SWEEP = ("--tune", "null")


@dataclass(frozen=True)
class SweepPlan:
    """A validated sweep. Crosses process boundaries.

    Attributes:
        loaded: the config that the trials vary.
        section: its `tune`, with a search space; see `with_space`.
        first: values of the first trial by path, for optuna; if empty, it draws them.
        source: the config as written, so that references follow a trial's values.
        overrides: of the command line; a trial's come after them.
        environment: variables that the config reads, for processes that do not inherit them.
    """

    loaded: LoadedConfig
    section: Tune
    source: Mapping[str, Any] = field(repr=False)  # holds secrets
    overrides: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    first: Mapping[str, Any] = field(default_factory=dict)

    @property
    def watched(self) -> tuple[str, str]:
        """The metric that ranks trials, and whether less (min) or more (max) is better."""
        config = self.loaded.config
        if self.section.metric is not None:
            return self.section.metric, self.section.mode
        for section in (config.early_stopping, config.checkpoint):
            if section is not None and section.monitor is not None:
                return section.monitor, section.mode or "min"
        return "val/loss", "min"

    def with_space(self, loaded: LoadedConfig) -> SweepPlan:
        """The plan with a search space, if the config has none.

        Args:
            loaded: the config with all defaults for the graph, which the first trial repeats.
        """
        if self.section.space:
            return self
        around = dict(_space_around(loaded))
        space = {path: parameter for path, (_, parameter) in around.items()}
        return replace(
            self,
            section=self.section.model_copy(update={"space": space}),
            first={path: own for path, (own, _) in around.items()},
        )

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
    """Loads a config, with or without a `tune` section. Raises a ConfigError if it is invalid."""
    source = read_source(config)
    added = () if source.value.get("tune") else ("--tune", "{}")
    scaling = source.value.get("scaling")
    if isinstance(scaling, Mapping) and scaling.get("num_workers") == 0:
        overrides = ("--scaling.num_workers", "1", *overrides)  # as `prepare` writes it
    loaded = load_config(source, [*added, *overrides], allow_modules)
    section = loaded.config.tune
    assert section is not None
    if not section.space:
        chosen = section.model_fields_set
        update = {key: value for key, value in _WITHOUT_SPACE.items() if key not in chosen}
        section = section.model_copy(update=update)
    return SweepPlan(loaded, section, source.value, tuple(overrides), loaded.environment)


#: Settings of a sweep whose config has no search space.
_WITHOUT_SPACE = {
    "num_samples": 8,
    "searcher": "optuna",
    "scheduler": MedianStopping(type="median_stopping"),
}


def _space_around(loaded: LoadedConfig) -> Iterator[tuple[str, tuple[Any, Parameter]]]:
    """Keys that usually matter, by path: the config's own value, and the values to try."""
    config = loaded.config
    lr = config.optimizer.args.get("lr")
    if isinstance(lr, float):
        yield "optimizer.args.lr", (lr, Parameter(loguniform=[lr / 4, lr * 4]))
    args = config.model.args
    fields = section_of(resolve(config.model, "model", loaded.allow_modules)).model_fields
    defaults = {name: args.get(name, field.default) for name, field in fields.items()}
    width, dropout = defaults.get("hidden_channels"), defaults.get("dropout")
    if isinstance(width, int):
        widths = [width // 2, width, width * 2]
        yield "model.args.hidden_channels", (width, Parameter(choice=widths))
    if isinstance(dropout, int | float):
        yield "model.args.dropout", (dropout, Parameter(choice=sorted({0.0, 0.2, 0.5, dropout})))
    if "num_layers" not in args and num_hops(config.sampling.fanouts):
        fanouts = config.sampling.fanouts
        deeper = with_fanouts(config, lambda hops: [*hops, hops[-1] and max(1, hops[-1] // 2)])
        choice = [fanouts, deeper.sampling.fanouts]
        if num_hops(fanouts) > 1:
            choice.append(with_fanouts(config, lambda hops: hops[:-1]).sampling.fanouts)
        yield "sampling.fanouts", (fanouts, Parameter(choice=choice))


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
    options = chosen.model_dump(exclude={"type"}, exclude_none=True)
    if isinstance(chosen, ASHA):
        return AsyncHyperBandScheduler(TIME_ATTRIBUTE, **{"max_t": _NO_END, **options})
    if isinstance(chosen, MedianStopping):
        return MedianStoppingRule(TIME_ATTRIBUTE, **options)
    return FIFOScheduler()


def searcher(plan: SweepPlan, num_concurrent: int) -> SearchAlgorithm | Searcher:
    """The searcher, which draws values; equal values for equal seeds. Each kind takes the number of
    trials at a time differently, because random ones ignore Ray's `max_concurrent_trials`. Raises a
    ConfigError if optuna is requested and not installed.
    """
    seed = plan.loaded.config.seed
    if plan.section.searcher == "random":
        return BasicVariantGenerator(max_concurrent=num_concurrent, random_state=seed)
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "tune.searcher='optuna' is invalid: the package optuna is not installed. Run `pip "
            "install optuna`, or set it to random. [sweep-optuna-missing]"
        ) from error
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line per trial, beside ours
    # Optuna warns that lists, such as fanouts, can't be stored in a database.
    warnings.filterwarnings("ignore", "Choices for a categorical distribution", UserWarning)
    first = [dict(plan.first)] if plan.first else None
    found = OptunaSearch(points_to_evaluate=first, seed=seed)
    return ConcurrencyLimiter(found, max_concurrent=num_concurrent)
