"""The text of a drafted config: what to learn of a drafted graph."""

from __future__ import annotations

from collections import Counter

from raygnn.config.documents import dump_yaml
from raygnn.data.convert.drafts.references import DRAFTED
from raygnn.data.edge_types import edge_type_name
from raygnn.data.manifest import EdgeTable, Manifest

#: Its file, in the folder of the graph.
CONFIG_NAME = "train.yaml"


def train_config(graph: Manifest, folder: str, *, drops: bool) -> str | None:
    """A config that trains on a drafted graph as it is: on its first labels, else on its links.

    Args:
        folder: of the graph, as the config names it.
        drops: whether rows have to be left out.
    Returns:
        YAML; None of a graph without edges, on which nothing can be trained.
    """
    if not graph.edge_types:
        return None
    by_hash = "{type: hash, fractions: [0.8, 0.1, 0.1]}"
    labelled = next((item for item in graph.node_types.items() if item[1].labels), None)
    sampling = None
    if labelled is not None:
        name, nodes = labelled
        task = f"{{type: node_classification, args: {{target: {name}}}}}"
        splits = None if nodes.split else by_hash
    else:
        links = _links(graph)
        splits = None if links.split else by_hash
        if links.time and splits:
            splits = (
                "{type: temporal, quantiles: [0.8, 0.9]}  # the last tenth of the time is the test"
            )
            sampling = "{temporal: {}}  # a link is predicted from earlier ones only"
        task = f"{{type: link_prediction, args: {{edge_type: {edge_type_name(links.type)}}}}}"
    is_plain = len(graph.node_types) == 1 == len(graph.edge_types)
    has_features = all(table.features for table in graph.node_types.values())
    given = {
        "data": "",
        "  uri": dump_yaml(folder).removesuffix("...\n").strip(),
        "  on_error": "drop  # leaves out the rows that graph.yaml counts" if drops else None,
        "  splits": splits,
        "task": task,
        "model": None if is_plain and has_features else "Hetero",
        "sampling": sampling,
        "scaling": "{num_workers: 0}  # in this process; without this line, workers of Ray train",
    }
    lines = [f"{key}: {text}".rstrip() for key, text in given.items() if text is not None]
    return "\n".join(["# A draft: docs/config-reference.md has every key.", *lines, ""])


def _links(graph: Manifest) -> EdgeTable:
    """Edges that are worth predicting: with a table of their own, at best with times."""
    of_nodes = {table.files for table in graph.node_types.values()}
    own = [
        table
        for table in graph.edge_types
        if table.files not in of_nodes and not table.files[0].startswith(f"{DRAFTED}/")
    ]
    timed = [table for table in own if table.time]
    sources = Counter(table.type[0] for table in graph.edge_types)
    # What refers most is what happens: shipments rather than drivers.
    busiest = max(graph.edge_types, key=lambda table: sources[table.type[0]])
    return next(iter([*timed, *own, busiest]))
