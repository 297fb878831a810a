"""Every row of docs/parity.yaml has tests that exist, or says what is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.parity import PAGE, named_tests, page, peers

ROOT = Path(__file__).parents[2]
ROWS = [(peer["peer"], row) for peer in peers() for row in [*peer["rows"], *peer["defects"]]]


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _missing(test: str) -> str | None:
    path, _, name = test.partition("::")
    name, _, case = name.rstrip("]").partition("[")
    if not (ROOT / path).is_file():
        return f"there is no {path}"
    if not name.startswith("test_") or name not in _functions(path):
        return f"{path} has no {name}"
    text = (ROOT / path).read_text(encoding="utf-8")
    if case and not re.search(rf'"{re.escape(case)}"|^{re.escape(case)}:', text, re.MULTILINE):
        return f"{path}::{name} has no case {case!r}"
    return None


@pytest.mark.parametrize(("peer", "row"), ROWS)
def test_a_row_has_tests_or_says_what_is_missing(peer, row):
    told = [key for key in ("test", "later") if row.get(key)]
    assert len(told) == 1, row
    assert [problem for test in named_tests(row) if (problem := _missing(test))] == []
    if "feature" in row and "test" in row:
        assert row["raygnn"]


def test_a_test_that_is_gone_is_noticed():
    here = "tests/unit/test_parity.py"
    assert _missing(f"{here}::test_a_test_that_is_gone_is_noticed") is None
    assert _missing(f"{here}::test_nothing") == f"{here} has no test_nothing"
    assert (
        _missing("tests/unit/test_nowhere.py::test_a") == "there is no tests/unit/test_nowhere.py"
    )
    assert "no case" in str(_missing(f"{here}::test_a_test_that_is_gone_is_noticed[{'x' * 9}]"))


def test_the_committed_page_is_what_the_generator_writes():
    assert PAGE.read_text(encoding="utf-8") == page()
