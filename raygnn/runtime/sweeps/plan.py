"""What a sweep is given, and the config of each of its trials."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from raygnn.config import LoadedConfig, load_config
from raygnn.config.run_section import Tune
from raygnn.config.source import read_source, to_plain
from raygnn.errors import ConfigError

_NO_SWEEP = ("--tune", "null")


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep. Crosses process boundaries.

    Attributes:
        loaded: the config that the trials vary.
        source: the config as written, so that references follow what a trial sets.
        overrides: of the command line; those of a trial come after them.
        environment: variables that the config reads, for processes that do not inherit them.
    """

    loaded: LoadedConfig
    source: Mapping[str, Any] = field(repr=False)  # holds secrets
    overrides: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    @property
    def section(self) -> Tune:
        """What is searched, and how."""
        section = self.loaded.config.tune
        assert section is not None
        return section

    @property
    def num_trials(self) -> int:
        """Trials of the whole sweep: a grid is run `num_samples` times."""
        grids = [len(p.grid) for p in self.section.space.values() if p.grid is not None]
        return self.section.num_samples * math.prod(grids)

    def trial_config(
        self, values: Mapping[str, Any], *, name: str | None, storage_path: str
    ) -> LoadedConfig:
        """The config of one trial: the sweep's with values by dotted path.

        Args:
            name: of the trial; None gives a config to be trained outside of the sweep.
        Raises:
            ConfigError: the combination is invalid.
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
    """Loads a config with a `tune` section.

    Raises:
        ConfigError: the config is wrong, or there is no such section.
    """
    source = read_source(config)
    loaded = load_config(source, overrides, allow_modules)
    if loaded.config.tune is None:
        raise ConfigError(
            "tune=None is invalid: a sweep needs to know what varies. Set tune.space, as in "
            "{optimizer.args.lr: {loguniform: [1e-4, 1e-1]}}.",
            id="sweep-no-space",
        )
    return SweepPlan(loaded, source.value, tuple(overrides), loaded.environment)
