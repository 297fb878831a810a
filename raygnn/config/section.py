"""What all sections of the config share: strictness, own rules, and the number types."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from raygnn.config.problems import Problem, rules_error


class Section(BaseModel):
    """A frozen mapping of known keys; a section checks the rules among its own keys itself."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def broken_rules(self) -> Iterable[Problem]:
        """Rules among the section's keys that do not hold; paths are relative to the section."""
        return ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if problems := list(self.broken_rules()):
            raise rules_error(problems)
        return self


def sections_in(annotation: Any) -> list[type[Section]]:
    """The section classes in a type: those of a union, and of a list's or map's items."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [inner for arg in typing.get_args(annotation) for inner in sections_in(arg)]


def _whole(value: Any) -> Any:
    """`1e6` is a float in YAML, and a natural way to write a count."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


Whole = Annotated[int, BeforeValidator(_whole)]
PositiveWhole = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
NonNegativeWhole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**63)]  # int64, as torch has it
PositiveNumber = Annotated[float, Field(gt=0)]
NonNegativeNumber = Annotated[float, Field(ge=0)]
NonEmptyText = Annotated[str, Field(min_length=1)]
