"""Arguments of components: `__type` builds an object, `__value_type` forces a type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from raygnn.config.documents import broken_scalar
from raygnn.config.problems import KeyPath, Problem, choose_from

TYPE_KEY, VALUE_TYPE_KEY, VALUE_KEY = "__type", "__value_type", "value"


def _to_bool(value: Any) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    text = str(value).lower()
    if text not in words:
        raise ValueError("it is neither true nor false")
    return words[text]


def _to_none(value: Any) -> None:
    if value not in (None, "null", "None", "~", ""):
        raise ValueError("it is not null")


_COERCIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _to_bool,
    "null": _to_none,
    "None": _to_none,
}


def is_value_type(value: Any) -> bool:
    return isinstance(value, dict) and VALUE_TYPE_KEY in value


def coerce(value: dict[str, Any]) -> Any:
    """The value of `{__value_type: int, value: "1"}`.

    Raises:
        KeyError: no such type.
        ValueError: the value is none of that type.
        TypeError: the same, for a value that is a list or a mapping.
        OverflowError: the same, for an infinite number as int.
    """
    coerced = _COERCIONS[value[VALUE_TYPE_KEY]](value.get(VALUE_KEY))
    if broken := broken_scalar(coerced):
        raise ValueError(broken[0])
    return coerced


def broken_nested_rules(
    value: Any, path: KeyPath, check_path: Callable[[str], tuple[str, str] | None]
) -> Iterator[Problem]:
    """What is wrong with nested arguments, as far as it shows without importing anything.

    Args:
        check_path: gives rule and remedy of a dotted path that may not be imported.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from broken_nested_rules(item, (*path, index), check_path)
    elif is_value_type(value):
        yield from _broken_value_type(value, path)
    elif isinstance(value, dict):
        if TYPE_KEY in value:
            dotted_path = value[TYPE_KEY]
            broken = (
                check_path(dotted_path)
                if isinstance(dotted_path, str)
                else ("it must be a dotted path", "Set package.module.Name")
            )
            if broken:
                yield Problem((*path, TYPE_KEY), *broken)
        for key, inner in value.items():
            yield from broken_nested_rules(inner, (*path, key), check_path)


def _broken_value_type(value: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    kind = value[VALUE_TYPE_KEY]
    if set(value) != {VALUE_TYPE_KEY, VALUE_KEY}:
        rule = f"it needs exactly the keys {VALUE_TYPE_KEY} and {VALUE_KEY}"
        yield Problem(path, rule, 'Set it as {__value_type: str, value: "1"}')
    elif not isinstance(kind, str) or kind not in _COERCIONS:
        remedy = choose_from(kind, list(_COERCIONS))
        yield Problem((*path, VALUE_TYPE_KEY), "there is no such type", remedy)
    else:
        try:
            coerce(value)
        except (ValueError, TypeError, OverflowError):
            yield Problem((*path, VALUE_KEY), f"it cannot be read as {kind}", f"Set a {kind}")
