"""The generated documents: reference page and JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import config_reference as reference
from raygnn.config import Config
from raygnn.config.section import Section, meanings, sections_in
from raygnn.config_schema import config_json_schema


def test_the_committed_page_is_what_the_generator_writes() -> None:
    committed = reference.PATH.read_text(encoding="utf-8")
    assert committed == reference.reference(), "run python -m docs.config_reference"


def test_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PATH", tmp_path / "page.md")
    assert reference.main() == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == reference.reference()


def _meanings(section: type[Section]) -> Iterator[tuple[str, Any]]:
    known = meanings(section)
    for name, field in section.model_fields.items():
        yield f"{section.__name__}.{name}", field.description or known.get(name)
        for inner in sections_in(field.annotation):
            yield from _meanings(inner)


def test_every_key_is_described_in_one_line() -> None:
    for name, meaning in _meanings(Config):
        assert meaning, name
        assert meaning.endswith("."), name
        assert "\n" not in meaning, name


def test_the_page_has_every_section() -> None:
    page = reference.reference()
    for title in ("data.splits (per_class)", "losses[]", "training.validate_every", "run"):
        assert f"\n## {title}\n" in page


def test_json_schema_knows_keys_and_refuses_others() -> None:
    schema = config_json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Config.model_fields)
    name, formats = schema["$defs"]["Training"]["properties"]["precision"]["oneOf"]
    assert name["enum"] == ["fp32", "bf16-mixed", "fp16-mixed", "bf16-true"]
    assert formats == {"$ref": "#/$defs/PrecisionMap"}
    assert "default" in schema["properties"]["optimizer"]


def test_json_schema_lets_a_component_be_a_name() -> None:
    choices = config_json_schema()["$defs"]["Component"]["anyOf"]
    assert choices[0]["type"] == "string"
    assert set(choices[1]["properties"]) == {"type", "args"}
