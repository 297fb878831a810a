"""Writes docs/parity.md from docs/parity.yaml: `python -m docs.parity`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SOURCE, PAGE = (Path(__file__).with_name(f"parity.{suffix}") for suffix in ("yaml", "md"))

_HEAD = """\
# Coming from GiGL, nnScaler, Determined or generic_trainer

Features of these trainers with their counterparts in raygnn, then known defects of the trainers and
the test that prevents each in raygnn. `python -m docs.parity` writes this page from
[parity.yaml](parity.yaml). CI fails if a test that a row names is missing.
"""


def peers() -> list[dict[str, Any]]:
    """The content of docs/parity.yaml."""
    return yaml.safe_load(SOURCE.read_text(encoding="utf-8"))


def named_tests(row: Mapping[str, Any]) -> list[str]:
    """Ids of the tests that a row names."""
    named = row.get("test", [])
    return [named] if isinstance(named, str) else list(named)


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for peer in peers():
        parts += [f"## {peer['peer']}", "", peer["about"], ""]
        parts += [_line("feature", "there", "raygnn", "test"), "|---|---|---|---|"]
        parts += [_line(r["feature"], r["peer"], _answer(r), _links(r)) for r in peer["rows"]]
        parts += ["", _line("defect there", "test here"), "|---|---|"]
        parts += [_line(r["defect"], _links(r) or _answer(r)) for r in peer["defects"]]
        parts.append("")
    return "\n".join(parts)


def _answer(row: Mapping[str, Any]) -> str:
    return row["raygnn"] if "raygnn" in row else f"**not yet**: {row['later']}"


def _links(row: Mapping[str, Any]) -> str:
    return ", ".join(_link(test) for test in named_tests(row))


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.partition('[')[0].removeprefix('test_')}](../{path})"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
