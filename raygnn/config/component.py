"""The model of a component: a name and its arguments."""

from __future__ import annotations

from typing import Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raygnn.config.section import NonEmptyText, Section


class Component(Section):
    """`{type: name, args: {...}}`, or the name alone; a short name or a dotted path."""

    type: NonEmptyText = Field(description="Short name, or dotted path of a class.")
    args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of its constructor; nested with `__type`."
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        full = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "string", "minLength": 1}, full]}
