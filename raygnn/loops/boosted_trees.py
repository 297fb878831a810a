"""LightGBM on columns of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import lightgbm

_NUM_TREES, _PATIENCE = 600, 40
_NUM_UNWATCHED = 200  # trees without validation rows
_NUM_MODELS = 3  # drawn with other rows and columns, and averaged
#: Settings to choose among on the validation rows: small trees for few rows, and larger ones.
_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_leaves": 8, "min_data_in_leaf": 50},
    {"num_leaves": 16, "min_data_in_leaf": 100},
)
_FEWEST_LEAVES = 8  # that the training rows fill
_BASE: dict[str, Any] = {
    "verbosity": -1,
    "deterministic": True,
    "force_col_wise": True,
    "feature_pre_filter": False,
    "learning_rate": 0.06,
    "lambda_l2": 1.0,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
}
_UNMOVED = 1e-9  # difference of a row's score from the mean, up to which its slope is the unit
_FEW_ROWS = 10_000  # predicted by one thread
_NEXT, _NEXT_OUTPUT, _UNIT = "\n# next model\n", "\n# next output\n", "# unit "


class BoostedTrees:
    """The mean prediction of some gradient boosted trees, which stop early on validation rows.

    Equal rows give equal trees, whatever the number of threads.

    Args:
        models: of each of several labels or numbers; else those of the only output.
        units: of each output; u if the trees add up to arcsinh(number / u).
    """

    def __init__(
        self, models: Sequence[Sequence[lightgbm.Booster]], units: Sequence[float | None]
    ) -> None:
        self._outputs, self._units = models, units

    @classmethod
    def fit(
        cls,
        columns: np.ndarray,
        labels: np.ndarray,
        val_columns: np.ndarray,
        val_labels: np.ndarray,
        num_classes: int | None,
        categorical: Sequence[int] = (),
        num_threads: int = 1,
        weights: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
        *,
        learns_medians: bool = True,
    ) -> BoostedTrees:
        """Fits trees with several settings, and more with the one that is best on validation.

        Args:
            columns: float64 [num_rows, num_columns], NaN for unknown values.
            labels: [num_rows], numbers or classes from 0 on; [num_rows, num_outputs] fits each of
                several outputs.
            val_columns, val_labels: the same of validation rows, perhaps none.
            num_classes: of each output; None for numbers.
            categorical: positions of columns with codes of categories.
            weights: of training and of validation rows, float64 [num_rows].
            learns_medians: of numbers; else means.
        """
        if labels.ndim == 2:
            more: Any = (num_classes, categorical, num_threads, weights)
            by_output = zip(*map(_by_output, (labels, val_labels)), strict=True)
            each = [
                cls.fit(
                    columns, of_train, val_columns, of_val, *more, learns_medians=learns_medians
                )
                for of_train, of_val in by_output
            ]
            outputs = [models for trees in each for models in trees._outputs]
            return cls(outputs, [unit for trees in each for unit in trees._units])
        import lightgbm  # with scikit-learn, which most models do not need

        columns, val_columns = _rounded(columns), _rounded(val_columns)
        objective = _objective(num_classes, learns_medians)
        unit = _unit(labels) if objective["objective"] == "l1" else None
        settings = _BASE | objective | {"num_threads": num_threads}
        options: Any = {"categorical_feature": list(categorical), "params": settings}
        train = lightgbm.Dataset(columns, _squeezed(labels, unit), weight=weights[0], **options)
        of_val = options | {"weight": weights[1], "reference": train}
        val = lightgbm.Dataset(val_columns, _squeezed(val_labels, unit), **of_val)
        most = max(1, len(labels) // _FEWEST_LEAVES)

        def fitted(setting: dict[str, Any], seed: int) -> lightgbm.Booster:
            least = min(setting["min_data_in_leaf"], most)
            tried = settings | setting | {"min_data_in_leaf": least, "seed": seed}
            if not len(val_labels):
                return lightgbm.train(tried, train, _NUM_UNWATCHED)
            stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
            return lightgbm.train(tried, train, _NUM_TREES, valid_sets=[val], callbacks=[stop])

        first = [fitted(each, 0) for each in _SETTINGS[: len(_SETTINGS) if len(val_labels) else 1]]
        best = int(np.argmin([sum(model.best_score["valid_0"].values()) for model in first]))
        models = [first[best]]
        models += [fitted(_SETTINGS[best], seed) for seed in range(1, _NUM_MODELS)]
        texts = [model.model_to_string(num_iteration=model.best_iteration) for model in models]
        return cls([[lightgbm.Booster(model_str=text) for text in texts]], [unit])

    def refitted(
        self,
        columns: np.ndarray,
        labels: np.ndarray,
        num_threads: int = 1,
        weights: np.ndarray | None = None,
    ) -> BoostedTrees:
        """As many trees, with the same settings, fitted to other rows."""
        import lightgbm

        columns = _rounded(columns)

        def fitted(model: lightgbm.Booster, values: np.ndarray) -> lightgbm.Booster:
            settings = model.params | {"num_threads": num_threads}
            settings["num_iterations"] = model.current_iteration()
            categorical = settings.pop("categorical_feature", [])
            options: Any = {"weight": weights, "categorical_feature": categorical}
            rows = lightgbm.Dataset(columns, values, **options)
            return lightgbm.train(settings, rows)

        outputs = [
            [fitted(model, _squeezed(values, unit)) for model in models]
            for models, unit, values in zip(
                self._outputs, self._units, _by_output(labels), strict=True
            )
        ]
        return BoostedTrees(outputs, self._units)

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """float64 [num_rows, num_outputs]: numbers, or probabilities of classes or labels."""
        # Threads that wait for work take more time than a few rows do.
        num_threads = 1 if len(columns) < _FEW_ROWS else 0
        columns = _rounded(columns)

        def mean(models: Sequence[lightgbm.Booster], unit: float | None) -> np.ndarray:
            every = [model.predict(columns, num_threads=num_threads) for model in models]
            numbers = [_widened(np.asarray(scores, np.float64), unit) for scores in every]
            return np.mean(numbers, axis=0).reshape(len(columns), -1)

        out = np.concatenate([*map(mean, self._outputs, self._units)], axis=1)
        return np.concatenate([1 - out, out], axis=1) if self._has_two_classes else out

    def gains(self) -> np.ndarray:
        """float64 [num_columns], the share of the loss's decrease by splits of each column."""
        every = [model for models in self._outputs for model in models]
        found = np.sum([model.feature_importance("gain") for model in every], axis=0)
        return np.asarray(found / max(found.sum(), 1e-300), np.float64)

    @cached_property
    def _has_two_classes(self) -> bool:
        objective: str = self._outputs[0][0].dump_model(num_iteration=1)["objective"]
        return len(self._outputs) == 1 and objective.startswith("binary")

    def contributions(self, columns: np.ndarray) -> np.ndarray:
        """SHAP values of each model, float64 [num_models, num_rows, num_outputs, num_columns + 1].

        Their sum over the last dimension is the model's score: a number, or logits of classes (0
        for the first of two). Its last element is the mean score of the training rows. With a unit,
        columns share the number in proportion to what they add to arcsinh(number / unit).
        """

        width, columns = columns.shape[1], _rounded(columns)

        def added(models: Sequence[lightgbm.Booster], unit: float | None) -> np.ndarray:
            every = [np.asarray(m.predict(columns, pred_contrib=True), np.float64) for m in models]
            found = np.stack(every).reshape(len(every), len(columns), -1, columns.shape[1] + 1)
            found = found[..., -width - 1 :]
            if unit is None:
                return found
            base, total = found[..., -1:], found.sum(axis=-1, keepdims=True)
            start, end = _widened(base, unit), _widened(total, unit)
            moved = np.abs(total - base) > _UNMOVED
            slope = (end - start) / np.where(moved, total - base, 1)
            slope = np.where(moved, slope, unit * np.cosh(base))
            return np.concatenate([found[..., :-1] * slope, start], axis=-1)

        out = np.concatenate([*map(added, self._outputs, self._units)], axis=2)
        return np.concatenate([np.zeros_like(out), out], axis=2) if self._has_two_classes else out

    @staticmethod
    def combined(scores: np.ndarray, problem: str) -> np.ndarray:
        """Predictions as by `predict`, from [num_models, num_rows, num_outputs] scores."""
        if problem == "multi_class":
            powers = np.exp(scores - scores.max(axis=2, keepdims=True))
            scores = powers / powers.sum(axis=2, keepdims=True)
        elif problem == "multi_label":
            scores = 1 / (1 + np.exp(-scores))
        return np.asarray(scores.mean(axis=0))

    def to_text(self) -> str:
        """LightGBM's text format, of one model after the other."""
        texts = [_NEXT.join(m.model_to_string() for m in models) for models in self._outputs]
        firsts = ["" if unit is None else f"{_UNIT}{unit!r}\n" for unit in self._units]
        return _NEXT_OUTPUT.join(map(add, firsts, texts))

    @classmethod
    def of_text(cls, text: str) -> BoostedTrees:
        import lightgbm

        outputs, units = [], list[float | None]()
        for part in text.split(_NEXT_OUTPUT):
            has_unit = part.startswith(_UNIT)
            first, models = part.split("\n", 1) if has_unit else ("", part)
            units.append(float(first.removeprefix(_UNIT)) if has_unit else None)
            outputs.append([lightgbm.Booster(model_str=each) for each in models.split(_NEXT)])
        return cls(outputs, units)


def _by_output(labels: np.ndarray) -> np.ndarray:
    """[num_outputs, num_rows], contiguous, since LightGBM warns of slices."""
    return np.ascontiguousarray(labels.reshape(len(labels), -1).T)


def _unit(labels: np.ndarray) -> float | None:
    """The usual size of numbers whose medians are learned as of their arcsinh: else steps of one
    size fit the many small numbers of a long tail, or the few large ones.
    """
    sizes = np.abs(labels[labels != 0])
    return float(np.median(sizes)) if len(sizes) else None


def _squeezed(labels: np.ndarray, unit: float | None) -> np.ndarray:
    return labels if unit is None else np.arcsinh(labels / unit)


def _widened(scores: np.ndarray, unit: float | None) -> np.ndarray:
    return scores if unit is None else np.sinh(scores) * unit


def _rounded(columns: np.ndarray) -> np.ndarray:
    """float32: sums that differ by rounding alone are on one side of each threshold.

    Without columns one of zeros, since LightGBM needs one.
    """
    return (
        columns.astype(np.float32) if columns.shape[1] else np.zeros((len(columns), 1), np.float32)
    )


def _objective(num_classes: int | None, learns_medians: bool) -> dict[str, Any]:
    """LightGBM's settings for a label. Its own loss stops it: the AUROC of validation rows of one
    season does not say whether the trees have learned the level of others.
    """
    if num_classes is None:
        return {"objective": "l1" if learns_medians else "l2"}
    if num_classes == 2:
        return {"objective": "binary"}
    return {"objective": "multiclass", "num_class": num_classes}
