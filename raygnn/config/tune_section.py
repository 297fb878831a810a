"""The section about sweeps: what is searched, by whom, and which trials are stopped early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raygnn.config.problems import Problem, rule_error
from raygnn.config.section import NonEmptyText, NonNegativeWhole, PositiveWhole, Section, Whole

Values = Annotated[list[Any], Field(min_length=1)]
Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
WholeBounds = Annotated[list[Whole], Field(min_length=2, max_length=2)]


class Parameter(Section):
    """How the values of one key are drawn: exactly one of these."""

    choice: Values | None = Field(default=None, description="One of these values, at random.")
    grid: Values | None = Field(
        default=None, description="Each of these values in turn, with each of every other grid."
    )
    uniform: Bounds | None = Field(default=None, description="A number between two others.")
    loguniform: Bounds | None = Field(
        default=None, description="As `uniform`, of the logarithm: for learning rates."
    )
    randint: WholeBounds | None = Field(
        default=None, description="A whole number from the first up to, without, the second."
    )

    @property
    def kind(self) -> str:
        """Name of the one that is given."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def values(self) -> list[Any]:
        """What is given: values to take, or two bounds."""
        given: list[Any] = getattr(self, self.kind)
        return given

    def broken_rules(self) -> Iterable[Problem]:
        kinds = list(type(self).model_fields)
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            yield Problem(
                (),
                f"it takes exactly one of {', '.join(kinds)}, and has {len(given)}",
                "Set one, as in {choice: [32, 64]} or {loguniform: [1e-4, 1e-1]}",
            )
            return
        kind = given[0]
        if kind in ("choice", "grid"):
            return
        low, high = getattr(self, kind)
        if low >= high:
            yield Problem(
                (kind,), f"{low:g} is not less than {high:g}", "Set the smaller bound first"
            )
        elif kind == "loguniform" and low <= 0:
            yield Problem(
                (kind,), "zero and less have no logarithm", "Set a lower bound above 0, or uniform"
            )


class FIFO(Section):
    """Every trial runs to its end."""

    type: Literal["fifo"] = Field(description="No trial is stopped early.")


class ASHA(Section):
    """Asynchronous successive halving (arXiv:1810.05934); times are numbers of validations."""

    type: Literal["asha"] = Field(description="Asynchronous successive halving.")
    grace_period: PositiveWhole = Field(
        default=1, description="Validations that every trial is granted."
    )
    reduction_factor: Annotated[float, Field(gt=1)] = Field(
        default=4.0, description="One trial in so many goes on from each rung to the next."
    )
    max_t: PositiveWhole | None = Field(
        default=None, description="Validations after which a trial ends; null: as it ends itself."
    )
    brackets: PositiveWhole = Field(default=1, description="Brackets of different grace periods.")

    def broken_rules(self) -> Iterable[Problem]:
        if self.max_t is not None and self.max_t < self.grace_period:
            yield Problem(
                ("max_t",),
                f"it is less than grace_period={self.grace_period}",
                "Set it to at least the grace period",
            )


class MedianStopping(Section):
    """Stops a trial whose best is worse than the median of the others' means at that time."""

    type: Literal["median_stopping"] = Field(description="Google Vizier's median stopping rule.")
    grace_period: NonNegativeWhole = Field(
        default=3, description="Validations that every trial is granted."
    )
    min_samples_required: PositiveWhole = Field(
        default=3, description="Trials that a median is taken of, at the least."
    )


def _scheduler(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(kind, str) and kind.lower() in ("pbt", "population_based_training"):
        raise rule_error(
            "population based training lets a trial go on from the checkpoint of another with "
            "other hyperparameters, and a trial of Ray Train hands Ray Tune no checkpoint that it "
            "could exploit",
            "Set asha, median_stopping or fifo",
        )
    return {"type": value} if isinstance(value, str) else value


class Tune(Section):
    """A sweep over this config: `python -m raygnn.tune CONFIG`."""

    space: Annotated[dict[str, Parameter], Field(min_length=1)] = Field(
        description="What varies: a dotted path of the config, and how its values are drawn."
    )
    metric: NonEmptyText = Field(default="val/loss", description="What trials are ranked by.")
    mode: Literal["min", "max"] = Field(
        default="min", description="Whether less or more of it is better."
    )
    num_samples: PositiveWhole = Field(
        default=1, description="Number of trials; with `grid`, how often the grid is run."
    )
    scheduler: Annotated[
        Annotated[FIFO | ASHA | MedianStopping, Field(discriminator="type")],
        BeforeValidator(_scheduler),
    ] = Field(
        default=FIFO(type="fifo"),
        description="Which trials are stopped early, by their validations.",
    )
    searcher: Literal["random", "optuna"] = Field(
        default="random",
        description="Who draws the values; optuna (TPE) needs the extra `raygnn[optuna]`.",
    )
    max_concurrent_trials: PositiveWhole | None = Field(
        default=None, description="Trials at a time; null: as many as have a place for all workers."
    )

    def broken_rules(self) -> Iterable[Problem]:
        for path, parameter in self.space.items():
            if self.searcher == "optuna" and parameter.grid is not None:
                yield Problem(
                    ("space", path, "grid"),
                    "optuna draws its values and takes no grid",
                    "Set choice in place of grid, or tune.searcher: random",
                )
