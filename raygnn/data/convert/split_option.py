"""Splits as one option text, `hash:0.8,0.1,0.1` or `per-class:20,30`, and their split column."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from raygnn.data.split_rules import hash_split, per_class_split
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import NodeRows
from raygnn.errors import ConfigError, DataError

SPLIT_HELP = "hash:TRAIN,VAL,TEST (shares), per-class:TRAIN,VAL (nodes of each class) or none"
_FORMS = "hash:0.8,0.1,0.1 (shares), per-class:20,30 (train and val nodes of each class) or none"


@dataclass(frozen=True)
class SplitOption:
    """A parsed split option: `kind` is hash (three shares), per-class (two counts) or none."""

    kind: str
    numbers: tuple[float, ...]


def parse_split(text: str) -> SplitOption:
    """Reads a split option.

    Raises:
        ConfigError: the text has none of the forms.
    """
    kind, _, rest = text.partition(":")
    if text == "none":
        return SplitOption(text, ())
    try:
        numbers = tuple(float(part) for part in rest.split(","))
    except ValueError:
        numbers = ()
    is_hash = kind == "hash" and len(numbers) == 3
    is_per_class = kind == "per-class" and len(numbers) == 2 and all(n == int(n) for n in numbers)
    if not is_hash and not is_per_class:
        raise ConfigError(
            f"split={text!r} is invalid: it has none of the known forms. Set {_FORMS}."
        )
    return SplitOption(kind, numbers)


def declare_split(nodes: NodeRows, split: str, seed: int, labels: np.ndarray | None) -> NodeRows:
    """Adds a split column that the manifest declares; a split of `none` adds nothing.

    Args:
        split: the option's text, see parse_split.
        labels: classes [n], needed by per-class; negative is unlabelled.
    Raises:
        ConfigError: the option is malformed.
        DataError: the split cannot be made of these nodes.
    """
    option = parse_split(split)
    if option.kind == "none":
        return nodes
    ids = nodes.table.column(nodes.id).combine_chunks()
    if option.kind == "hash":
        codes = hash_split(ids, option.numbers, seed)
    elif labels is None:
        raise DataError(
            f"split={split!r} is invalid: the nodes have no labels. Use hash:0.8,0.1,0.1 instead."
        )
    else:
        train, val = (int(number) for number in option.numbers)
        codes = per_class_split(ids, labels, train, val, seed)
    return with_split(nodes, codes)


def with_split(nodes: NodeRows, codes: np.ndarray) -> NodeRows:
    """Adds split codes (0 none, 1 train, 2 val, 3 test) as the declared column `split`."""
    table = nodes.table.append_column("split", split_column(codes))
    return replace(nodes, table=table, split="split")
