"""A config as one level of keys, as experiment trackers want hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def flat_config(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The values of a saved config by dotted key; nulls and empty values are left out.

    A list of scalars is one text, `[15, 10]`; other lists count their items: `losses.0.type`.
    """
    return dict(_leaves(config, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, bool | int | float | str]]:
    if isinstance(value, Mapping):
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        if value is not None and value != []:
            yield path, json.dumps(value) if isinstance(value, list) else value
        return
    for key, inner in items:
        yield from _leaves(inner, f"{path}.{key}" if path else key)
