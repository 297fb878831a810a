"""Access to Ray's private interface, and its supported versions. Does not import Ray itself."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from raygnn.errors import ResourceError

#: The version of Ray that raygnn is tested with.
TESTED_RAY = "2.60"


def internal(module: str, name: str) -> Any:
    """A name of one of Ray's private modules. Raises a ResourceError if this Ray lacks it."""
    try:
        loaded = import_module(module)
    except ImportError as error:
        raise _missing(module) from error
    return attribute(loaded, name)


def attribute(owner: Any, name: str) -> Any:
    """A private attribute of one of Ray's objects. Raises a ResourceError if it is missing."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        what = getattr(owner, "__name__", type(owner).__name__)
        raise _missing(f"{what}.{name}") from error


def _missing(what: str) -> ResourceError:
    return ResourceError(
        f"Ray {version('ray')} cannot be used: it has no {what}. raygnn is tested with Ray "
        f"{TESTED_RAY}. Install ray=={TESTED_RAY}.*, or a newer raygnn. [cluster-ray-version]"
    )
