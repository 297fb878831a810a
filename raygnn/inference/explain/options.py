"""Options of explanations. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from raygnn.errors import ConfigError

GNN_EXPLAINER = "GNNExplainer"
#: Captum's, that need no more than gradients.
CAPTUM_METHODS = ("IntegratedGradients", "InputXGradient", "Saliency")
METHODS = (GNN_EXPLAINER, *CAPTUM_METHODS)


@dataclass(frozen=True)
class ExplainOptions:
    """Options of explanations.

    Attributes:
        method: GNNExplainer, or one of Captum's attributions: IntegratedGradients, InputXGradient
            or Saliency.
        num_edges, num_columns: size of the explanation in `fidelity`: that many of the
            most important edges and columns.
    Raises:
        ConfigError: the method is unknown, its package is missing, or a number is below 1.
    """

    method: str = GNN_EXPLAINER
    num_edges: int = 10
    num_columns: int = 3

    def __post_init__(self) -> None:
        ConfigError.check_choice(
            "method", self.method, METHODS, "unknown method", id="explain-method-unknown"
        )
        for name in ("num_edges", "num_columns"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is invalid: it must be at least 1. "
                    "Set 1 or more.",
                    id="explain-number",
                )
        if self.method in CAPTUM_METHODS:
            try:
                import captum.attr  # noqa: F401
            except ImportError as error:
                raise ConfigError(
                    f"method={self.method!r} cannot be used: {error}. Run "
                    "`pip install -e '.[captum]'` in raygnn's folder, or set GNNExplainer.",
                    id="explain-extra-missing",
                ) from error
