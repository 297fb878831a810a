"""Generated graphs by name, for `data.synthetic`, `raygnn.prepare synthetic` and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raygnn.data.tables.graph_tables import GraphTables
from raygnn.errors import ConfigError, Problem, choose_from
from raygnn.prepare.synthetic.draws import argument_problems
from raygnn.prepare.synthetic.link_graphs import likes, noise, ratings, shop
from raygnn.prepare.synthetic.node_graphs import houses, planted_partition, rmat

__all__ = [
    "GENERATORS",
    "houses",
    "likes",
    "noise",
    "planted_partition",
    "ratings",
    "rmat",
    "shop",
    "synthetic_tables",
]

GENERATORS: dict[str, Callable[..., GraphTables]] = {
    generator.__name__: generator
    for generator in (planted_partition, rmat, shop, houses, ratings, likes, noise)
}


def synthetic_problems(type: str, **args: Any) -> list[Problem]:
    if type not in GENERATORS:
        remedy = choose_from(type, list(GENERATORS))
        problem = Problem(
            ("data", "synthetic", "type"),
            "unknown generator",
            remedy,
            "synthetic-generator-unknown",
            repr(type),
        )
        return [problem]
    return argument_problems(GENERATORS[type], args)


def synthetic_tables(type: str, **args: Any) -> GraphTables:
    """Generates a graph: `synthetic_tables(**config.data.synthetic)`.

    Args:
        type: a name in GENERATORS.
        args: the generator's arguments.
    Raises:
        ConfigError: unknown type, unknown or invalid arguments; names all of them.
    """
    if problems := synthetic_problems(type, **args):
        raise ConfigError(problems)
    return GENERATORS[type](**args)
