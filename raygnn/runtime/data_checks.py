"""What can be known to be wrong with data and task before a worker starts."""

from __future__ import annotations

import numpy as np

from raygnn.config import Component, Config, LoadedConfig, resolve
from raygnn.config.slots import SLOTS
from raygnn.console import say
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name, resolve_fanouts, reversed_edge_type
from raygnn.data.manifest import Manifest, reverses
from raygnn.loops.tasks.link_prediction.target import LinkTarget, LinkTargetArguments
from raygnn.loops.tasks.node_classification.target import NodeTarget, NodeTargetArguments


def check_schema(loaded: LoadedConfig, uri: str) -> None:
    """Checks model and fanouts by what `graph.yaml` declares, before tables are read.

    A task of the user's own may need neither.

    Raises:
        ConfigError: the model does not take as many types, or the fanouts name other edge types.
        DataError: `graph.yaml` is wrong.
    """
    config, manifest = loaded.config, Manifest.load(uri)
    if config.task.type not in SLOTS["task"].names:
        return
    edge_types = [table.type for table in manifest.edge_types]
    if config.data.reverse_edges:
        declared = reverses(manifest.edge_types)
        for table in manifest.edge_types:
            is_within = table.type[0] == table.type[2]
            undirected = not table.directed or (config.data.undirected and is_within)
            if not undirected and table.type not in declared:
                edge_types.append(reversed_edge_type(table.type))
    if is_of_raygnn(config.model):
        from raygnn.models.graph_inputs import check_types

        model_class = resolve(config.model, "model")
        assert isinstance(model_class, type)
        num_node_types = len(manifest.node_types)
        check_types(config.model.type, model_class, num_node_types, len(edge_types))
    if config.sampling.type is None:
        resolve_fanouts(config.sampling.fanouts, edge_types)


def is_of_raygnn(model: Component) -> bool:
    """Whether a model is one of raygnn's: one of the user's own is imported in workers only."""
    return model.type.startswith("raygnn.") or "." not in model.type


def check_data(config: Config, bundle: Bundle) -> None:
    """Finds target, labels, features, splits and fanouts of a built-in task, as its workers will.

    A task or model of the user's own is imported, and checked, in the workers only.

    Raises:
        ConfigError: `task.args` or the fanouts name something that the graph does not have.
        DataError: labels or features are missing, or a split is empty.
    """
    check = {"link_prediction": _check_links, "node_classification": _check_nodes}.get(
        config.task.type
    )
    if check is not None:
        if config.sampling.type is None:
            resolve_fanouts(config.sampling.fanouts, bundle.edge_types)
        check(config, bundle)


def _check_links(config: Config, bundle: Bundle) -> None:
    arguments = LinkTargetArguments.of(config.task.args)
    found = LinkTarget.find(bundle, config, arguments)
    _check_model(config, bundle, arguments)
    sizes = ", ".join(f"{name} {edges.num_links:,}" for name, edges in found.splits.items())
    names = [edge_type_name(edge_type) for edge_type in found.edge_types]
    more = f" and {len(names) - 1} more relations" if names[1:] else ""
    _say_learned(bundle, arguments.feature)
    say(f"links {names[0]}{more}: {sizes}")
    _say_fallbacks(arguments, found, bundle)
    _warn_of_silent_anchors(arguments, found)


def _warn_of_silent_anchors(arguments: LinkTargetArguments, found: LinkTarget) -> None:
    """Warns of anchors whose links are all in the batch that they are in."""
    carry_messages = not arguments.labels and not arguments.disjoint_train_ratio
    if arguments.seeds == "links" or not carry_messages:
        return
    num_links = np.diff(found.splits["train"].indptr)
    cap = arguments.max_labels_per_anchor
    silent = np.count_nonzero(num_links <= (np.inf if cap is None else cap))
    if silent:
        say(
            f"warning: task.args.seeds=anchors keeps all links of {silent:,} of {len(num_links):,} "
            "anchors out of their own messages in training. Set seeds: links, or a smaller "
            "max_labels_per_anchor"
        )


def _say_fallbacks(arguments: LinkTargetArguments, found: LinkTarget, bundle: Bundle) -> None:
    """Reports nodes that are not anchors, and what the number of nodes limits."""
    anchor_type, target_type = found.node_types
    has_links = np.zeros(bundle.num_nodes(anchor_type), bool)
    for edges in found.splits.values():
        has_links[edges.anchors] = True
    if not has_links.all():
        say(f"{np.sum(~has_links):,} {anchor_type} nodes have no such links and are no anchors")
    num_targets = bundle.num_nodes(target_type)
    if arguments.num_random_negatives > num_targets:
        say(
            f"task.args.num_random_negatives: there are {num_targets:,} {target_type} nodes, so "
            "some repeat"
        )
    if arguments.num_random_negatives_eval > found.most_candidates(bundle):
        say(
            f"task.args.num_random_negatives_eval: each link competes with at most "
            f"{found.most_candidates(bundle):,}, the other {target_type} nodes"
        )


def _say_learned(bundle: Bundle, feature: str) -> None:
    """Tells of node types that have no features, where a graph has several types."""
    without = [name for name in bundle.node_types if feature not in bundle.columns(name)]
    if without and bundle.node_types[1:]:
        say(
            f"node types without feature {feature!r}: {', '.join(without)}; models of several "
            "types learn a row for each of their nodes"
        )


def _check_nodes(config: Config, bundle: Bundle) -> None:
    arguments = NodeTargetArguments.of(config.task.args)
    found = NodeTarget.find(bundle, config, arguments)
    _check_model(config, bundle, arguments, found.node_type)
    splits = found.splits
    _say_learned(bundle, found.feature)
    say(
        f"{bundle.num_nodes(found.node_type):,} {found.node_type} nodes, {found.in_channels} "
        f"features, {found.problem} with {found.num_outputs} outputs; "
        f"train {len(splits.train):,}, val {len(splits.val):,}, test {len(splits.test):,}"
    )


def _check_model(
    config: Config,
    bundle: Bundle,
    arguments: NodeTargetArguments | LinkTargetArguments,
    node_type: str | None = None,
) -> None:
    """Checks what a built-in model reads of the graph.

    Args:
        node_type: whose nodes it is to have features of, if any's.
    """
    if not is_of_raygnn(config.model):
        return
    from raygnn.models.graph_inputs import check_node_features, find_edge_columns

    find_edge_columns(bundle, config.model, arguments.edge_feature, arguments.edge_weight)
    if node_type is not None:
        check_node_features(bundle, node_type, arguments.feature, config.model)
