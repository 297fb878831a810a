"""LightGBM on columns of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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
_FEW_ROWS = 10_000  # predicted by one thread
_NEXT = "\n# next model\n"


class BoostedTrees:
    """The mean prediction of some gradient boosted trees, which stop early on validation rows.

    Equal rows give equal trees, whatever the number of threads.
    """

    def __init__(self, models: Sequence[lightgbm.Booster]) -> None:
        self._models = models

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
        """Fits trees with several settings, and more with the one that is best on validation.

        Args:
            columns: float64 [num_rows, num_columns], NaN for unknown values.
            labels: [num_rows], numbers or classes from 0 on.
            val_columns, val_labels: the same of validation rows, perhaps none.
            num_classes: None for numbers.
            metric: the metric that selects, such as `mae`, `auroc` or `accuracy`.
            categorical: positions of columns with codes of categories.
        """
        import lightgbm  # with scikit-learn, which most models do not need

        objective, watched = _objective(num_classes, metric)
        settings = _BASE | objective | {"metric": watched, "num_threads": num_threads}
        options: Any = {"categorical_feature": list(categorical), "params": settings}
        train = lightgbm.Dataset(columns, labels, **options)
        val = lightgbm.Dataset(val_columns, val_labels, reference=train, **options)
        most = max(1, len(labels) // _FEWEST_LEAVES)

        def fitted(setting: dict[str, Any], seed: int) -> lightgbm.Booster:
            least = min(setting["min_data_in_leaf"], most)
            tried = settings | setting | {"min_data_in_leaf": least, "seed": seed}
            if not len(val_labels):
                return lightgbm.train(tried, train, _NUM_UNWATCHED)
            stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
            return lightgbm.train(tried, train, _NUM_TREES, valid_sets=[val], callbacks=[stop])

        def loss(model: lightgbm.Booster) -> float:
            score = model.best_score["valid_0"][watched]
            return -score if watched in ("auc", "average_precision") else score

        first = [fitted(each, 0) for each in _SETTINGS[: len(_SETTINGS) if len(val_labels) else 1]]
        best = min(range(len(first)), key=lambda i: loss(first[i])) if len(first) > 1 else 0
        models = [first[best]]
        models += [fitted(_SETTINGS[best], seed) for seed in range(1, _NUM_MODELS)]
        texts = [model.model_to_string(num_iteration=model.best_iteration) for model in models]
        return cls.of_text(_NEXT.join(texts))

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """float64 [num_rows, num_outputs]: numbers or class probabilities."""
        # Threads that wait for work take more time than a few rows do.
        num_threads = 1 if len(columns) < _FEW_ROWS else 0
        found = [
            np.asarray(model.predict(columns, num_threads=num_threads), np.float64)
            for model in self._models
        ]
        out = np.mean(found, axis=0).reshape(len(columns), -1)
        return np.concatenate([1 - out, out], axis=1) if self._is_binary else out

    def gains(self) -> np.ndarray:
        """float64 [num_columns], the share of the loss's decrease by splits of each column."""
        found = np.sum([model.feature_importance("gain") for model in self._models], axis=0)
        return np.asarray(found / max(found.sum(), 1e-300), np.float64)

    @cached_property
    def _is_binary(self) -> bool:
        objective: str = self._models[0].dump_model(num_iteration=1)["objective"]
        return objective.startswith("binary")

    def contributions(self, columns: np.ndarray) -> np.ndarray:
        """SHAP values of each model, float64 [num_models, num_rows, num_outputs, num_columns + 1].

        Their sum over the last dimension is the model's score: a number, or logits of classes (0
        for the first of two). Its last element is the mean score of the training rows.
        """
        found = [
            np.asarray(model.predict(columns, pred_contrib=True), np.float64)
            for model in self._models
        ]
        out = np.stack(found).reshape(len(found), len(columns), -1, columns.shape[1] + 1)
        return np.concatenate([np.zeros_like(out), out], axis=2) if self._is_binary else out

    @staticmethod
    def combined(scores: np.ndarray, *, is_class: bool) -> np.ndarray:
        """Predictions as by `predict`, from [num_models, num_rows, num_outputs] scores."""
        if is_class:
            powers = np.exp(scores - scores.max(axis=2, keepdims=True))
            scores = powers / powers.sum(axis=2, keepdims=True)
        return np.asarray(scores.mean(axis=0))

    def to_text(self) -> str:
        """LightGBM's text format, of one model after the other."""
        return _NEXT.join(model.model_to_string() for model in self._models)

    @classmethod
    def of_text(cls, text: str) -> BoostedTrees:
        import lightgbm

        return cls([lightgbm.Booster(model_str=each) for each in text.split(_NEXT)])


def _objective(num_classes: int | None, metric: str) -> tuple[dict[str, Any], str]:
    """LightGBM's settings for a label, and its metric closest to the one that selects."""
    if num_classes is None:
        is_absolute = metric in ("mae", "nmae", "mape", "median_ae")
        return {"objective": "l1" if is_absolute else "l2"}, "l1" if is_absolute else "l2"
    if num_classes == 2:
        watched = {"auroc": "auc", "average_precision": "average_precision"}
        return {"objective": "binary"}, watched.get(metric, "binary_logloss")
    return {"objective": "multiclass", "num_class": num_classes}, "multi_logloss"
