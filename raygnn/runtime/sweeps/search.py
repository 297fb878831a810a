"""The `tune` section as Ray Tune's own objects."""

from __future__ import annotations

from typing import Any

from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher
from ray.tune.search.search_algorithm import SearchAlgorithm

from raygnn.config.run_section import ASHA, MedianStopping, Parameter, Tune
from raygnn.errors import ConfigError

#: What schedulers count a trial's time in: see `Engine`, which reports it.
TIME_ATTRIBUTE = "validation"

_NO_END = 2**20  # validations; more rungs than any run has


def search_space(section: Tune) -> dict[str, Any]:
    """Tune's domains by dotted path."""
    return {path: _domain(parameter) for path, parameter in section.space.items()}


def _domain(parameter: Parameter) -> Any:
    kind, values = parameter.kind, parameter.values
    if kind == "grid":
        return tune.grid_search(values)
    if kind == "choice":
        return tune.choice(values)
    return getattr(tune, kind)(*values)


def scheduler(section: Tune) -> TrialScheduler:
    """Who stops trials early."""
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
    """Who draws values; the same ones for the same seed.

    Args:
        num_concurrent: trials at a time. Each kind of searcher takes it in its own way: Ray's
            `max_concurrent_trials` is ignored beside a random one.
    Raises:
        ConfigError: optuna is asked for and not installed.
    """
    if section.searcher == "random":
        return BasicVariantGenerator(max_concurrent=num_concurrent, random_state=seed)
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "tune.searcher='optuna' is invalid: the package optuna is not installed. Install "
            "raygnn[optuna], or set it to random.",
            id="sweep-optuna-missing",
        ) from error
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line per trial, beside ours
    return ConcurrencyLimiter(OptunaSearch(seed=seed), max_concurrent=num_concurrent)
