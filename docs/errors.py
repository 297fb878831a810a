"""Writes docs/errors.md from the code that raises: `python -m docs.errors`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from raygnn import errors
from raygnn.config import cross_rules
from raygnn.config.arguments import IDS_OF_SLOTS
from raygnn.config.section import Section
from raygnn.data import bundle_record, compactions
from raygnn.data.checksums import Seal
from raygnn.data.ingest.findings import REPAIR
from raygnn.data.partition import record
from raygnn.loops.tasks.target import target_classes
from raygnn.outputs import model_registry
from raygnn.sampling import sample_record

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")

_HEAD = """\
# Errors

Each error message ends with an id in brackets, as in `... [edges-dangling]`. Ids do not change when
messages are reworded, so scripts, alerts and searches can rely on them. In Python, `error.id` and
`error.ids` contain them. The status is the exit status of a command: 2 for an invalid config, table
or folder, 1 for a failed run, 143 for a stopped one (130 after Ctrl-C). Names in braces stand for
values.

`python -m docs.errors` writes this page from the code that raises the errors.
"""

#: The id at the end of a message.
_ID = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$")

#: Positions of rule and remedy in helpers that build messages.
_RULE_AND_REMEDY = {
    "Problem": (1, 2),
    "RuleError": (0, 1),
    ".invalid": (2, 3),
    "Finding": (3, 4),
    ".add": (1, 4),  # of FindingCollector
    "check_arguments": (2, 3),
    ".check_choice": (3, 4),
}

ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.RaygnnError)
}


@dataclass(frozen=True)
class Site:
    """One place in the code that makes an error.

    Attributes:
        id: None where the code gives none, as where it joins or raises again what has ids.
        cause: template of the message up to the remedy.
        where: file and function, as in `raygnn/data/edge_kernels.py:edge_weights`.
    """

    id: str | None
    status: int
    cause: str
    remedy: str
    where: str


@cache
def sites() -> tuple[Site, ...]:
    """Every place in `raygnn/` that makes an error or gives an id, by file and line."""
    files = sorted((ROOT / "raygnn").rglob("*.py"))
    found = (site for path in files for site in _of_file(path))
    return (*_of_arguments(), *_of_tables(), *_of_seals(), *found)


#: Cause and remedy of a mistake in the arguments of a component, whose id depends on the slot.
_OF_ARGUMENTS = {
    "config-unknown-key": ("there is no such argument.", "Set one that the component takes."),
    "config-choice": ("unknown choice.", "Set one of the choices."),
    "config-range": ("it is out of range.", "Set a number in the range."),
    "config-type": ("it has the wrong type.", "Set a value of the right type."),
    "config-length": ("it has too few or too many entries.", "Set a list of the right length."),
}


def _of_arguments() -> Iterator[Site]:
    for ids in IDS_OF_SLOTS.values():
        for mistake, id in ids.items():
            yield Site(id, 2, *_OF_ARGUMENTS[mistake], "raygnn/config/arguments.py:")


def _of_tables() -> Iterator[Site]:
    """The rows of all tables of what excludes what."""
    targets = target_classes()  # imports the sections of their arguments
    owners = [*_below(Section), *dict.fromkeys(kind for each in targets for kind in each.__mro__)]
    tables = [cross_rules.RULES, *(vars(owner).get("rules", ()) for owner in owners)]
    for rule in (rule for table in tables for rule in table):
        yield Site(rule.id, 2, f"{rule.reason}.", f"{rule.remedy}.", "")


def _of_seals() -> Iterator[Site]:
    """Damaged folders, and those of another version, of all kinds of records."""
    modules = (bundle_record, record, sample_record, model_registry, compactions)
    for seal in (each for module in modules for each in vars(module).values()):
        if isinstance(seal, Seal):
            remedy = f"{seal.remedy}."
            yield Site(seal.damaged, 2, "{folder} is damaged: {cause}.", remedy, "")
            yield Site(seal.outdated, 2, "{folder} has {format} {version}.", remedy, "")


def _below(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)


def _of_file(path: Path) -> Iterator[Site]:
    tree = _parsed(path)
    name = path.relative_to(ROOT).as_posix()
    outer = [node for node in tree.body if isinstance(node, ast.Assign)]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        is_method = isinstance(call.func, ast.Attribute)
        callee = f".{call.func.attr}" if is_method else _name(call.func)
        ids = [k.value for k in call.keywords if k.arg == "id"]
        ids += call.args[3:4] if callee == "Problem" else []
        if not ids and callee not in ERRORS:
            continue
        given = _constants(ids[0]) if ids else _ids_in_text(call.args)
        if not call.args or not given:  # an id that is handed on
            continue
        around = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)]
        inner = max(around, key=lambda f: f.lineno, default=None)
        assigned = [n for f in around for n in ast.walk(f) if isinstance(n, ast.Assign)]
        texts = _Texts(call, [*outer, *assigned, *_imported(tree)])
        cause, remedy = texts.cause_and_remedy(callee)
        owner = _name(call.func.value) if isinstance(call.func, ast.Attribute) else callee
        kind = ERRORS.get(owner, errors.TrainingError if callee == "error" else errors.DataError)
        where = f"{name}:{inner.name if inner else ''}"
        for id in given:
            yield Site(id, kind.exit_status, cause, remedy, where)


def _ids_in_text(args: list[ast.expr]) -> list[str | None]:
    """The id at the end of a message, or None."""
    parts = [part for arg in args[:1] for part in getattr(arg, "values", [arg])]
    last = parts[-1] if parts else None
    found = _ID.search(str(last.value)) if isinstance(last, ast.Constant) else None
    return [found[1] if found else None]


def _constants(id: ast.expr) -> list[str | None]:
    """The texts that an id may be."""
    nodes = [id.body, id.orelse] if isinstance(id, ast.IfExp) else [id]
    return [str(node.value) for node in nodes if isinstance(node, ast.Constant)]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(tree: ast.Module) -> Iterator[ast.Assign]:
    """The constants that a module imports from others of raygnn."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("raygnn."):
            path = ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py")
            names = {a.name for a in node.names if a.name.isupper() and a.asname is None}
            for inner in _parsed(path).body if names and path.is_file() else ():
                if isinstance(inner, ast.Assign) and _name(inner.targets[0]) in names:
                    yield inner


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


class _Texts:
    """Templates of a call's arguments, with the texts of variables that were assigned before."""

    def __init__(self, call: ast.Call, assigned: list[ast.Assign]) -> None:
        self._call = call
        self._assigned = sorted(assigned, key=lambda n: -n.lineno)

    def cause_and_remedy(self, callee: str) -> tuple[str, str]:
        places = _RULE_AND_REMEDY.get(callee)
        if places is None:
            cause, _, remedy = _ID.sub("", self._argument(0)).partition(". ")
            return f"{cause.rstrip('.')}.", remedy
        defaults = {".add": REPAIR, ".check_choice": "Set one of the choices"}
        default = defaults.get(callee, "Correct it")
        rule, remedy = (self._argument(place) or default for place in places)
        return f"{rule}.", f"{remedy.rstrip('.')}."

    def _argument(self, place: int) -> str:
        if place >= len(self._call.args):
            return ""
        return " ".join(self._text(self._call.args[place], self._call).split())

    def _text(self, node: ast.expr, place: ast.Call | ast.Assign) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, place)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(value, place) for value in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left, place) + self._text(node.right, place)
        if isinstance(node, ast.Call) and _name(node.func) == "choose_from":
            what = self._text(node.args[2], place) if len(node.args) > 2 else "Set one of"
            return f"{what}: {{{_placeholder(node.args[1])}}}"
        if isinstance(node, ast.IfExp):
            texts = [self._text(branch, place) for branch in (node.body, node.orelse)]
        else:
            texts = self._of_variable(node.id, place) if isinstance(node, ast.Name) else []
        texts = [t for t in dict.fromkeys(texts) if "\n" not in t and re.search("[a-z]{2}", t)]
        return " / ".join(texts) or f"{{{_placeholder(node)}}}"

    def _of_variable(self, name: str, place: ast.Call | ast.Assign) -> list[str]:
        """The texts that a variable may have: of the branches that end before its use."""
        found: list[str] = []
        for statement in self._assigned:
            value = _assigned_to(name, statement)
            is_before = statement.lineno < place.lineno or not statement.col_offset
            if value is None or statement is place or not is_before:
                continue
            if isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp | ast.BinOp | ast.Call):
                found.insert(0, self._text(value, statement))
            if statement.col_offset <= place.col_offset:
                break
        return found


def _assigned_to(name: str, statement: ast.Assign) -> ast.expr | None:
    for target in statement.targets:
        if _name(target) == name:
            return statement.value
        names = [_name(one) for one in target.elts] if isinstance(target, ast.Tuple) else []
        if name in names:
            several = isinstance(statement.value, ast.Tuple)
            return statement.value.elts[names.index(name)] if several else statement.value
    return None


def _placeholder(node: ast.expr) -> str:
    """What an expression is called in a template: the last name that says what it is."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(func=ast.Attribute(value=value, attr="tolist" | "as_py" | "to_pylist")):
            return _placeholder(value)
        case ast.Call(args=[first, *_]):
            return _placeholder(first)
        case ast.Call(func=inner):
            return _placeholder(inner)
        case ast.Subscript(value=ast.Name(id="dict" | "list"), slice=inner):
            return _placeholder(inner)
        case ast.Subscript(value=inner) | ast.BinOp(left=inner) | ast.Starred(value=inner):
            return _placeholder(inner)
        case ast.Compare(left=inner) | ast.UnaryOp(operand=inner) | ast.IfExp(body=inner):
            return _placeholder(inner)
        case ast.BoolOp(values=[inner, *_]) | ast.List(elts=[inner, *_]):
            return _placeholder(inner)
        case ast.Tuple(elts=[inner, *_]):
            return _placeholder(inner)
        case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
            return _placeholder(inner)
    return "..."


def page() -> str:
    """The page as Markdown."""
    listed = sorted((s for s in sites() if s.id), key=lambda s: str(s.id))
    parts = [_HEAD]
    for area, group in groupby(listed, key=lambda s: str(s.id).partition("-")[0]):
        parts += [f"## {area}", "", "| id | status | cause | remedy |", "|---|---|---|---|"]
        rows = dict.fromkeys((f"`{s.id}`", str(s.status), s.cause, s.remedy) for s in group)
        parts += [_line(*row) for row in rows] + [""]
    return "\n".join(parts)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
