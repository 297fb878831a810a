"""Dotted paths of a config: which may be imported, and the imports."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from raygnn.errors import RuleError, did_you_mean

#: Packages whose classes a config may name without being allowed to.
LIBRARY_ROOTS = ("torch", "torch_geometric", "torchmetrics", "raygnn")


#: Modules of the libraries in which a class must be defined, and to which a path must lead.
#: Constructors of other classes run, unpickle or fetch what their arguments name:
#: torch.package.PackageImporter, torch.utils.benchmark.Timer, torchmetrics.multimodal.CLIPScore
#: (trust_remote_code), and all of torch_geometric.datasets, which unpickle the files of a folder.
#: A user who trusts one of these packages and the files it reads allows it by name.
_REACHABLE = (
    "raygnn",
    "torch.nn",
    "torch.optim",
    "torch_geometric.nn",
    "torch_geometric.sampler",
    "torch_geometric.transforms",
    *(f"torchmetrics.{name}" for name in ("aggregation", "classification", "clustering")),
    *(f"torchmetrics.{name}" for name in ("collections", "metric", "nominal", "regression")),
    *(f"torchmetrics.{name}" for name in ("retrieval", "wrappers")),
)


#: The exception therein: it evaluates its arguments as Python (type hints of a signature).
_UNREACHABLE = ("torch_geometric.nn.sequential",)


def allowed_root(path: str, allow_modules: Sequence[str]) -> str:
    """The package or module that a path must stay in. Raises a RuleError for other paths."""
    parts = path.split(".")
    if parts[0] == "__main__" or "<locals>" in parts:
        rule, remedy = "it cannot be imported", "Move it into a module, or pass the object"
        raise RuleError(rule, remedy, id="component-not-importable")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise RuleError("it is not a dotted path", "Set package.module.Name", id="component-path")
    for module in (*allow_modules, *LIBRARY_ROOTS):
        if path.startswith(f"{module}."):
            is_private = is_of_library(path) and any(part.startswith("_") for part in parts)
            if is_private or any(part.startswith("__") for part in parts):
                raise RuleError(
                    "private names cannot be set", "Set a public one", id="component-private"
                )
            if module in LIBRARY_ROOTS and module not in allow_modules:
                check_reachable(path.rpartition(".")[0], is_alias=True)
            return module
    roots = [*LIBRARY_ROOTS, *allow_modules]
    rule = f"it is outside of what this job may import ({', '.join(roots)})"
    raise RuleError(rule, _allow(parts[0]), id="component-not-allowed")


def is_of_library(path: str) -> bool:
    return path.partition(".")[0] in LIBRARY_ROOTS


def check_reachable(module: str, *, is_alias: bool = False) -> None:
    """Checks that a module of a library is within a config's reach.

    `is_alias`: the class is found there, possibly above its defining module
    (torchmetrics.Accuracy).
    """
    is_reachable = any(
        is_within(module, package) or (is_alias and is_within(package, module))
        for package in _REACHABLE
    )
    if not is_reachable or any(is_within(module, package) for package in _UNREACHABLE):
        rule = f"classes of {module} may unpickle files or run code"
        raise RuleError(rule, _allow(module), id="component-not-allowed")


def _allow(module: str) -> str:
    return (
        f"Add --allow-module {module} to the command, or allow_modules=[{module!r}] in Python, "
        "if you trust it and the files that it reads"
    )


def is_within(module: Any, root: str) -> bool:
    return isinstance(module, str) and (module == root or module.startswith(f"{root}."))


def import_dotted(
    path: str, allow_modules: Sequence[str], *, takes_functions: bool
) -> type | Callable[..., Any]:
    """Imports a class that is defined in the allowed root of its path.

    Args:
        takes_functions: also accepts a function of an allowed user module.
    Raises:
        RuleError: it does not exist, is defined elsewhere or is not a class.
    """
    root = allowed_root(path, allow_modules)
    module, attributes = _import_module(path, root)
    value: Any = module
    for name in attributes:
        if not _is_ours(value, root):
            break
        try:
            value = getattr(value, name)
        except AttributeError:
            raise _no_such_name(value, name) from None
    is_function = isinstance(value, types.FunctionType)
    is_class = isinstance(value, type) and _is_ours(value, root)
    if not is_class and not is_function:
        rule = f"it is not a class defined in {root}"
        raise RuleError(rule, "Set the path where a class is defined", id="component-kind")
    is_restricted = root in LIBRARY_ROOTS and root not in allow_modules
    if is_class and is_restricted:
        check_reachable(value.__module__)
    if is_function:
        if is_restricted or not takes_functions:
            what = "a function" if is_restricted else "a function, but a class is required"
            raise RuleError(f"it is {what}", "Set a class", id="component-kind")
        if not is_within(value.__module__, root):
            rule = f"the function is defined in {value.__module__}, not in {root}"
            raise RuleError(rule, "Set its path there, and allow it", id="component-not-allowed")
    return value


def _is_ours(value: Any, root: str) -> bool:
    """Whether it is a module or class of the allowed root; nothing else is inspected."""
    if isinstance(value, types.ModuleType):
        return is_within(value.__name__, root) or root.startswith(f"{value.__name__}.")
    return isinstance(value, type) and is_within(value.__module__, root)


def _import_module(path: str, root: str) -> tuple[types.ModuleType, list[str]]:
    parts = path.split(".")
    for length in range(len(parts) - 1, root.count("."), -1):
        name = ".".join(parts[:length])
        try:
            return _import_module_by_name(name, root), parts[length:]
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing != name and not name.startswith(f"{missing}."):
                is_own = missing.partition(".")[0] == root.partition(".")[0]
                rule = f"importing {name} failed: {error}"
                remedy = "Correct the import" if is_own else f"Install {missing} on every node"
                raise RuleError(rule, remedy, id="component-import") from error
    rule, remedy = f"there is no module {root}", "Install it on every node, or start in its folder"
    raise RuleError(rule, remedy, id="component-module-missing")


def _import_module_by_name(name: str, root: str) -> types.ModuleType:
    """Imports a module; a user's may be in the current directory, independently of sys.path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here, top = os.getcwd(), root.partition(".")[0]
        if root in LIBRARY_ROOTS or error.name != top or {"", here} & set(sys.path):
            raise
        sys.path.append(here)  # last, so that it only adds names
        importlib.invalidate_caches()
        return importlib.import_module(name)


def _no_such_name(parent: Any, name: str) -> RuleError:
    where = getattr(parent, "__name__", str(parent))
    public = sorted(n for n, v in vars(parent).items() if isinstance(v, type) and n[0] != "_")
    remedy = f"{did_you_mean(name, public)}Look into {where}"
    return RuleError(f"{where} has no {name}", remedy, id="component-missing")
