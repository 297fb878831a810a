"""What names of tables and columns say: whose id a column holds, and of which end of an edge."""

from __future__ import annotations

import re

ENDS = (("source", "src", "from", "head", "sender"), ("target", "dst", "to", "tail", "receiver"))
KEYS = ("id", "key", "code", "sku", "uid", "uuid")
_END_OF_KEY = re.compile(
    r"(?i:[-_ ]?(id|key|code|nr)|[-_ ](no|num|number))$|(?<=[a-z])(No|Num|Number)$"
)


def node_name(column: str) -> str:
    """`user_id` as `user`; nothing where a name does not end so."""
    name = _END_OF_KEY.sub("", column)
    return type_name(name) if name and name != column else ""


def type_name(name: str) -> str:
    """A name as `graph.yaml` takes it."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "node"


def singular(name: str) -> str:
    """An English plural's singular, by its ending."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if name.lower().endswith(ending) and not name.lower().endswith("ss"):
            return name[: -len(ending)] + instead
    return name


def plain(name: str) -> str:
    """Letters and digits alone, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
