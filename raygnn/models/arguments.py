"""Checks and signatures of `model.args`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import Field

from raygnn.errors import Problem

#: A probability to leave something out.
Share = Annotated[float, Field(ge=0, lt=1)]


def broken_heads(options: Any) -> Iterator[Problem]:
    width, num_heads = options.hidden_channels, options.num_heads
    if width % num_heads:
        lower, upper = width // num_heads * num_heads, -(-width // num_heads) * num_heads
        yield Problem(
            ("hidden_channels",),
            "it is the width of all heads together and must be a multiple of "
            f"model.args.num_heads={num_heads}",
            f"Set {lower} or {upper}" if lower else f"Set {upper}",
            id="model-heads",
        )


def signature_with_options(cls: Any, takes_options: Callable[..., None]) -> inspect.Signature:
    """The signature of an encoder's class, with the fields of its `Options` as parameters.

    Args:
        takes_options: the constructor whose `**options` are these fields. A class with another
            constructor keeps that signature.
    """
    signature = inspect.signature(cls.__init__)
    parameters = list(signature.parameters.values())[1:]
    if cls.__init__ is takes_options:
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        known = {p.name for p in named}
        parameters = named + [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else field.default,
            )
            for name, field in cls.Options.model_fields.items()
            if name not in known
        ]
    return inspect.Signature(parameters)
