"""Checks of the arguments that a user gives under `model.args`."""

from __future__ import annotations

from collections.abc import Sequence

from raygnn.errors import ConfigError


def check_positive(**values: int) -> None:
    """Checks that each value is an integer of at least 1.

    Raises:
        ConfigError: one is not.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"model.args.{name}={value!r} is invalid: it must be an integer of at least 1. "
                f"Set {name} to 1 or more."
            )


def check_probability(**values: float) -> None:
    """Checks that each value lies in [0, 1).

    Raises:
        ConfigError: one does not.
    """
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0.0 <= value < 1.0:
            raise ConfigError(
                f"model.args.{name}={value!r} is invalid: it must be at least 0 and less than 1. "
                f"Set {name} to 0.0 to switch it off."
            )


def check_choice(
    name: str, value: str | None, choices: Sequence[str], *, optional: bool = False
) -> None:
    """Checks that a value is one of the choices, or None where that is allowed.

    Raises:
        ConfigError: it is not; lists the choices.
    """
    if value in choices or (value is None and optional):
        return
    allowed = [*choices, *(["null"] if optional else [])]
    raise ConfigError(
        f"model.args.{name}={value!r} is invalid: it must be one of {', '.join(allowed)}. "
        f"Set one of these."
    )


def check_heads(num_heads: int, **widths: int) -> None:
    """Checks that each width can be cut into `num_heads` equal parts.

    Raises:
        ConfigError: one cannot.
    """
    for name, width in widths.items():
        if width % num_heads:
            lower, upper = width // num_heads * num_heads, -(-width // num_heads) * num_heads
            near = f"{lower} or {upper}" if lower else f"{upper}"
            raise ConfigError(
                f"model.args.{name}={width!r} is invalid: it is the width of all heads together "
                f"and must be a multiple of model.args.num_heads={num_heads}. Set {near}."
            )
