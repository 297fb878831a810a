"""The arguments that a user gives under `model.args`: their checks, and what a class takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from raygnn.errors import ConfigError


def check_positive(**values: int) -> None:
    """Checks that each value is an integer of at least 1.

    Raises:
        ConfigError: one is not.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError.invalid(
                f"model.args.{name}",
                value,
                "it must be an integer of at least 1",
                f"Set {name} to 1 or more",
                id="model-argument",
            )


def check_probability(**values: float) -> None:
    """Checks that each value lies in [0, 1).

    Raises:
        ConfigError: one does not.
    """
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0.0 <= value < 1.0:
            raise ConfigError.invalid(
                f"model.args.{name}",
                value,
                "it must be at least 0 and less than 1",
                f"Set {name} to 0.0 to switch it off",
                id="model-argument",
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
    raise ConfigError.invalid(
        f"model.args.{name}",
        value,
        f"it must be one of {', '.join(allowed)}",
        "Set one of these",
        id="model-argument-choice",
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
            raise ConfigError.invalid(
                f"model.args.{name}",
                width,
                "it is the width of all heads together and must be a multiple of "
                f"model.args.num_heads={num_heads}",
                f"Set {near}",
                id="model-heads",
            )


def check_attention(num_heads: int, attn_dropout: float) -> None:
    """Checks the arguments of attention.

    Raises:
        ConfigError: one is out of range.
    """
    check_positive(num_heads=num_heads)
    check_probability(attn_dropout=attn_dropout)


def signature_with_options(cls: Any, takes_options: Callable[..., None]) -> inspect.Signature:
    """The signature of an encoder's class, the fields of its `Options` among the parameters.

    Args:
        takes_options: the constructor whose `**options` are these fields; a class with another
            constructor has that one's signature.
    """
    own = inspect.signature(cls.__init__)
    parameters = list(own.parameters.values())[1:]
    if cls.__init__ is takes_options:
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        known = {p.name for p in named}
        parameters = named + [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field))
            for field in fields(cls.Options)
            if field.name not in known
        ]
    return inspect.Signature(parameters)


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
