"""JSON Schema of the config, for editors."""

from __future__ import annotations

from typing import Any

from raygnn.config.schema import Config


def config_json_schema() -> dict[str, Any]:
    """The schema of a config file, in the dialect that pydantic writes."""
    schema = Config.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raygnn config",
        **{key: value for key, value in schema.items() if key != "title"},
    }
