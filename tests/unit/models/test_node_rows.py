"""Learned rows and numbers of neighbors besides features, in the output of an encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from raygnn.models import Hetero
from raygnn.models.exact import ExactOptions, exact_inference
from tests.unit.models.hetero_graph import EDGE_TYPES, IN_CHANNELS, NUM_NODES, random_hetero_graph

GRAPH = random_hetero_graph()
IDS = {name: torch.arange(num) for name, num in NUM_NODES.items()}


def _encoder(**args: Any) -> Hetero:
    torch.manual_seed(0)
    encoder = Hetero(IN_CHANNELS, 3, 8, 2, edge_types=EDGE_TYPES, num_nodes=NUM_NODES, **args)
    for weight in encoder.degree_weights.values():
        torch.nn.init.normal_(weight)
    return encoder.eval()


def _inputs(encoder: Hetero, ids: dict[str, Tensor]) -> dict[str, Tensor]:
    embedded = encoder.embedded_types
    return {name: i if name in embedded else GRAPH.x[name][i] for name, i in ids.items()}


def _encode(encoder: Hetero, n_id: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    n_id = {name: IDS[name] for name in encoder.identified_types} if n_id is None else n_id
    found: dict[str, Tensor] = encoder(_inputs(encoder, IDS), GRAPH.whole(2), n_id)
    return found


@pytest.mark.parametrize("normalize_output", [False, True])
def test_blocks_and_exact_inference_give_the_rows_of_the_full_graph(
    normalize_output: bool,
) -> None:
    encoder = _encoder(node_embeddings=True, degree_inputs=True, normalize_output=normalize_output)
    expected = _encode(encoder)
    nodes, blocks = GRAPH.blocks({"user": torch.tensor([3, 11, 0]), "item": torch.tensor([8])}, 2)
    got = encoder(_inputs(encoder, nodes), blocks, nodes)
    torch.testing.assert_close(got["user"], expected["user"][[3, 11, 0]])
    torch.testing.assert_close(got["item"], expected["item"][[8]])
    every = exact_inference(
        encoder,
        lambda name, ids: GRAPH.x[name].numpy()[ids],
        GRAPH.in_edges(),
        NUM_NODES,
        options=ExactOptions(chunk_size=15),
    )
    for name, rows in every.items():
        torch.testing.assert_close(rows, expected[name])


def test_the_output_gains_a_row_and_the_scaled_sum_of_those_of_neighbors() -> None:
    encoder = _encoder(node_embeddings=["item"])
    plain, found = _encode(encoder, {}), _encode(encoder)
    rows = encoder.node_rows.tables["item"].rows.weight
    gained = {name: torch.zeros(num, 3) for name, num in NUM_NODES.items()}
    gained["item"] += rows
    for edge_type, edges in GRAPH.in_edges().items():
        if edge_type[0] == "item":
            for node in range(NUM_NODES[edge_type[2]]):
                sources = edges.indices[edges.indptr[node] : edges.indptr[node + 1]]
                if len(sources):
                    total = rows[torch.from_numpy(sources).long()].sum(0)
                    gained[edge_type[2]][node] += total / len(sources) ** 0.5
    for name, rows_of in found.items():
        torch.testing.assert_close(rows_of - plain[name], gained[name])


def test_new_nodes_have_no_row_and_training_drops_some() -> None:
    rows = _encoder(node_embeddings=["item"]).node_rows
    num = NUM_NODES["item"]
    known = rows("item", torch.tensor([0, num - 1]))
    new = rows("item", torch.tensor([num, num + 7]))
    assert (known != 0).all()
    assert (new == 0).all()
    rows.train()
    dropped = (rows("item", torch.zeros(4000, dtype=torch.int64)) == 0).all(dim=1)
    assert 0.07 < dropped.float().mean() < 0.13
    rows.eval()
    rows.forget("item")
    assert (rows("item", torch.tensor([0])) == 0).all()
