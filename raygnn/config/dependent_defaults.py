"""Defaults that depend on other keys, filled in before validation: values may be wrong here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Components whose type may be left out: args given without a type join the default's.
DEFAULT_COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "task": {"type": "node_classification", "args": {}},
    "model": {"type": "GraphSAGE", "args": {}},
    "optimizer": {"type": "Adam", "args": {"lr": 0.005, "weight_decay": 1e-6}},
    "lr_scheduler": {"type": "ConstantLR", "args": {"factor": 1.0}},
}


def fill_dependent_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config with the defaults that follow from what is given."""
    filled = dict(raw)
    for key, default in DEFAULT_COMPONENTS.items():
        filled[key] = _fill_component(filled.get(key, dict(default)), default)
    _let_batch_size_follow(filled)
    return filled


def _fill_component(component: Any, default: Mapping[str, Any]) -> Any:
    if isinstance(component, str):
        return {"type": component, "args": {}}
    if not isinstance(component, dict) or "type" in component:
        return component
    args = component.get("args", {})
    if not isinstance(args, dict):
        return {**component, "type": default["type"]}
    return {**component, "type": default["type"], "args": {**default["args"], **args}}


def _let_batch_size_follow(filled: dict[str, Any]) -> None:
    """With the other two of the triple given, the default batch size gives way."""
    training, loader = filled.get("training"), filled.get("loader", {})
    if not isinstance(training, dict) or not isinstance(loader, dict) or "batch_size" in loader:
        return
    if training.get("global_batch_size") and training.get("accumulate_grad_batches"):
        filled["loader"] = {**loader, "batch_size": None}
