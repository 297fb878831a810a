"""Rows that break a rule, counted by file, column and rule, with the first examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from raygnn.console import count
from raygnn.errors import with_id

REPAIR = "Repair the rows, or set data.on_error=drop to leave them out."

MAX_EXAMPLES = 5
_MAX_LINES = 25


@dataclass(frozen=True)
class Finding:
    """Rows of one file that break one rule.

    Attributes:
        table: `node_types.user` or `edge_types.user__buys__item`.
        rule: completes "12 rows with ...".
        rows: first rows, counted from 0 in the file.
    """

    table: str
    file: str
    column: str
    rule: str
    remedy: str
    count: int
    rows: tuple[int, ...]
    values: tuple[str, ...] = ()
    id: str = field(kw_only=True)

    def __str__(self) -> str:
        examples = ", ".join(str(row) for row in self.rows)
        more = ", ..." if self.count > len(self.rows) else ""
        shown = f" (values {', '.join(self.values)}{more})" if self.values else ""
        text = (
            f"{self.table}: {self.file}: column {self.column!r}: {count(self.count, 'row')} "
            f"with {self.rule}; first at row {examples}{more}{shown}. {self.remedy}"
        )
        return with_id(text.strip(), self.id)


@dataclass
class FindingCollector:
    """Collects findings over the blocks of one piece. `bad`: rows of the current block."""

    table: str
    file: str = ""
    file_row: int = 0
    bad: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    _found: dict[tuple[str, str, str], Finding] = field(default_factory=dict)

    def start_block(self, file: str, file_row: int, num_rows: int) -> None:
        self.file, self.file_row = file, file_row
        self.bad = np.zeros(num_rows, bool)

    @contextmanager
    def one_column(self) -> Iterator[None]:
        """Checks a column by itself, so that one bad column hides no other."""
        earlier, self.bad = self.bad, np.zeros_like(self.bad)
        yield
        self.bad |= earlier

    def add(
        self,
        column: str,
        rule: str,
        mask: np.ndarray,
        values: pa.Array | np.ndarray | None = None,
        remedy: str = REPAIR,
        *,
        id: str,
    ) -> None:
        """Marks rows as bad and counts them under a rule, with examples from `values`."""
        if not mask.any():
            return
        self.bad |= mask
        rows = np.flatnonzero(mask)
        shown = rows[:MAX_EXAMPLES]
        examples = () if values is None else tuple(_show(values[int(row)]) for row in shown)
        finding = Finding(
            self.table,
            self.file,
            column,
            rule,
            remedy,
            len(rows),
            tuple((shown + self.file_row).tolist()),
            examples,
            id=id,
        )
        key = (self.file, column, rule)
        self._found[key] = _joined([self._found[key], finding] if key in self._found else [finding])

    def findings(self) -> list[Finding]:
        return list(self._found.values())


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """Joins the findings of several pieces of the same files, first rows first."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        key = (finding.table, finding.file, finding.column, finding.rule)
        groups.setdefault(key, []).append(finding)
    return [_joined(group) for group in groups.values()]


def _joined(group: Sequence[Finding]) -> Finding:
    examples = sorted(
        (row, finding.values[i] if finding.values else "")
        for finding in group
        for i, row in enumerate(finding.rows)
    )[:MAX_EXAMPLES]
    return replace(
        group[0],
        count=sum(finding.count for finding in group),
        rows=tuple(row for row, _ in examples),
        values=tuple(value for _, value in examples) if group[0].values else (),
    )


def describe(findings: Sequence[Finding], are_dropped: bool = False) -> str:
    """One line per finding, for dropped rows without remedy. A long list ends with the number of
    omitted ones.
    """
    if are_dropped:
        findings = [replace(finding, remedy="") for finding in findings]
    lines = [str(finding) for finding in findings[:_MAX_LINES]]
    left = len(findings) - len(lines)
    if left:
        rows = sum(finding.count for finding in findings[_MAX_LINES:])
        lines.append(f"... and {left} more problems in {rows:,} rows.")
    return "\n".join(lines)


def _show(value: object) -> str:
    text = repr(value.as_py() if isinstance(value, pa.Scalar) else _plain(value))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.item() if value.size == 1 else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
