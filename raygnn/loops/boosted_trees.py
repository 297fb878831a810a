"""LightGBM on columns of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np

_NUM_TREES, _PATIENCE = 600, 30
_NUM_UNWATCHED = 200  # trees without validation rows
#: Settings to choose among on the validation rows: small trees for few rows, and larger ones.
_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_leaves": 31, "feature_fraction": 0.3},
    {"num_leaves": 8, "feature_fraction": 0.3, "min_data_in_leaf": 50, "lambda_l2": 1.0},
)
_BASE: dict[str, Any] = {
    "verbosity": -1,
    "seed": 0,
    "deterministic": True,
    "force_col_wise": True,
    "feature_pre_filter": False,
    "learning_rate": 0.06,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
}


class BoostedTrees:
    """Gradient boosted trees that stop early on validation rows.

    Equal rows give equal trees, whatever the number of threads.
    """

    def __init__(self, model: lightgbm.Booster) -> None:
        self._text: str = model.model_to_string()
        self._model = model

    @classmethod
    def fit(
        cls,
        columns: np.ndarray,
        labels: np.ndarray,
        val_columns: np.ndarray,
        val_labels: np.ndarray,
        num_classes: int | None,
        metric: str,
        categorical: Sequence[int] = (),
        num_threads: int = 1,
    ) -> BoostedTrees:
        """Fits trees with several settings and returns those that are best on validation.

        Args:
            columns: float64 [num_rows, num_columns], NaN for unknown values.
            labels: [num_rows], numbers or classes from 0 on.
            val_columns, val_labels: the same of validation rows, perhaps none.
            num_classes: None for numbers.
            metric: the metric that selects, such as `mae`, `auroc` or `accuracy`.
            categorical: positions of columns with codes of categories.
        """
        objective, watched = _objective(num_classes, metric)
        settings = _BASE | objective | {"metric": watched, "num_threads": num_threads}
        options: Any = {"categorical_feature": list(categorical), "free_raw_data": False}
        train = lightgbm.Dataset(columns, labels, params=_BASE, **options)
        if not len(val_labels):
            return cls(lightgbm.train(settings | _SETTINGS[0], train, _NUM_UNWATCHED))
        found = []
        val = lightgbm.Dataset(val_columns, val_labels, reference=train, **options)
        for tried in _SETTINGS:
            stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
            model = lightgbm.train(
                settings | tried, train, _NUM_TREES, valid_sets=[val], callbacks=[stop]
            )
            score = model.best_score["valid_0"][watched]
            found.append((-score if watched in ("auc", "average_precision") else score, model))
        best = min(found, key=lambda each: each[0])[1]
        return cls.of_text(best.model_to_string(num_iteration=best.best_iteration))

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """float64 [num_rows, num_outputs]: numbers or class probabilities."""
        out = np.asarray(self._model.predict(columns), np.float64).reshape(len(columns), -1)
        is_binary = "\nobjective=binary" in self._text
        return np.concatenate([1 - out, out], axis=1) if is_binary else out

    def to_text(self) -> str:
        """LightGBM's text format."""
        return self._text

    @classmethod
    def of_text(cls, text: str) -> BoostedTrees:
        return cls(lightgbm.Booster(model_str=text))


def _objective(num_classes: int | None, metric: str) -> tuple[dict[str, Any], str]:
    """LightGBM's settings for a label, and its metric closest to the one that selects."""
    if num_classes is None:
        is_absolute = metric in ("mae", "nmae", "mape", "median_ae")
        return {"objective": "l1" if is_absolute else "l2"}, "l1" if is_absolute else "l2"
    if num_classes == 2:
        watched = {"auroc": "auc", "average_precision": "average_precision"}
        return {"objective": "binary"}, watched.get(metric, "binary_logloss")
    return {"objective": "multiclass", "num_class": max(num_classes, 2)}, "multi_logloss"
