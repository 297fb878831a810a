from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.loops.tasks.link_prediction.evaluation import ranks_by_group
from raygnn.outputs.report_advice import say_warmth
from raygnn.outputs.report_errors import find_errors
from raygnn.recommender.known_links import LinkHistory


def _links(pairs: list[tuple[int, int]], target_type: str = "item") -> SupervisionEdges:
    pairs = sorted(pairs)
    anchors, counts = np.unique([a for a, _ in pairs], return_counts=True)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SupervisionEdges(
        "user", target_type, None, anchors, indptr, np.array([t for _, t in pairs])
    )


#: Targets 0 to 3 have 0, 1, 3 and 8 training links; anchor 9 has none.
TRAIN = [(0, 1), *((a, 2) for a in range(3)), *((a, 3) for a in range(8))]
JUDGED = [(0, 0), (1, 1), (2, 2), (3, 3), (9, 0), (9, 3)]


def _described(num_candidates: int = 12, same_type: bool = False):
    """Of links at random ranks, in two batches out of order; and the ranks."""
    target_type = "user" if same_type else "item"
    train, judged = _links(TRAIN, target_type), _links(JUDGED, target_type)
    ranks = np.array([1, 2, 3, 11, 12, 5])
    scores = torch.zeros(len(JUDGED), num_candidates)
    scores[:, 0] = 0.5
    for row, rank in enumerate(ranks.tolist()):
        scores[row, 1:rank] = 1.0
    found = ranks_by_group(num_candidates, train, judged)
    for diagnostic in found:
        first, second = torch.tensor([4, 1]), torch.tensor([0, 5, 3, 2])
        states = [diagnostic.update(scores[rows], rows) for rows in (first, second)]
        diagnostic.compute(states[0] + states[1])
    return {diagnostic.name: diagnostic.describe() for diagnostic in found}, ranks


def test_ranks_of_links_by_degree_and_warmth_are_those_of_a_loop():
    found, ranks = _described()
    by_degree = {"0": [0, 4], "1": [1], "2 to 5": [2], "6 to 20": [3, 5]}
    by_warmth = {"both warm": [1, 2, 3], "cold target": [0], "cold anchor": [5], "both cold": [4]}
    for name, groups in (("ranks_by_degree", by_degree), ("ranks_by_warmth", by_warmth)):
        assert found[name]["groups"] == list(groups)
        assert found[name]["links"] == [len(rows) for rows in groups.values()]
        expected = [np.mean(1 / ranks[rows]) for rows in groups.values()]
        np.testing.assert_allclose(found[name]["mrr"], expected)
        hits = [np.mean(ranks[rows] <= 10) for rows in groups.values()]
        np.testing.assert_allclose(found[name]["hits@10"], hits)


def test_rows_in_time_are_cold_until_their_first_known_link():
    """Training rows do not count, only links until the time of a row."""
    judged = replace(_links([(0, 1), (0, 2), (1, 1), (1, 3)]), times=np.array([5, 5, 5, 5]))
    ends = np.array([0, 2, 0]), np.array([1, 1, 2])
    history = LinkHistory((3, 4), *ends, times=np.array([4, 5, 6]))
    by_degree, by_warmth = ranks_by_group(9, _links(TRAIN), judged, history)
    for diagnostic in (by_degree, by_warmth):
        diagnostic.compute(diagnostic.update(torch.zeros(4, 9), torch.arange(4)))
    # Item 1 is known to have two links at time 5, user 0 one, user 1 and items 2 and 3 none.
    assert by_degree.describe()["groups"] == ["0", "2 to 5"]
    assert by_degree.describe()["links"] == [2, 2]
    assert by_warmth.describe()["groups"] == [
        "both warm",
        "cold target",
        "cold anchor",
        "both cold",
    ]
    assert by_warmth.describe()["links"] == [1, 1, 1, 1]


def test_between_nodes_of_one_type_links_count_for_both_ends():
    found, _ = _described(same_type=True)
    assert found["ranks_by_warmth"]["groups"] == ["both warm", "cold anchor"]


def test_hits_that_all_links_are_do_not_count():
    found, _ = _described(num_candidates=12)
    assert "hits@10" in found["ranks_by_degree"]
    diagnostics = ranks_by_group(10, _links(TRAIN), _links(JUDGED))
    for diagnostic in diagnostics:
        diagnostic.compute(diagnostic.update(torch.zeros(6, 10), torch.arange(6)))
        assert "hits@10" not in diagnostic.describe()


def test_the_report_has_a_table_of_each():
    found, _ = _described()
    tables = find_errors({name: {"test": value} for name, value in found.items()}).tables
    heads, rows = tables["Ranks by known links of the target, test"]
    assert heads == ("known links of the target", "links", "mrr", "hits@10")
    assert [row[:2] for row in rows] == [("0", 2), ("1", 1), ("2 to 5", 1), ("6 to 20", 2)]
    assert "Ranks by known links of both ends, test" in tables


def test_the_log_has_cold_links_if_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"groups": ["both warm", "cold target"], "links": [90, 10], "mrr": [0.5, 0.25]}
    say_warmth({"ranks_by_warmth": {"test": both}})
    assert "test/mrr by known links: both warm 0.5000 (90)  cold target 0.2500 (10)" in (
        capsys.readouterr().out
    )
    say_warmth({"ranks_by_warmth": {"test": {"groups": ["both warm"], "links": [9], "mrr": [1.0]}}})
    assert not capsys.readouterr().out
