"""Answers of a trained model on one graph, with alike questions batched."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from raygnn.data.added_rows import AddedRows
from raygnn.data.edge_types import edge_type_name
from raygnn.data.event_log import EventLog
from raygnn.data.time_units import Time
from raygnn.errors import ConfigError, DataError
from raygnn.inference.explain.options import ExplainOptions
from raygnn.inference.extended_graph import ExtendedGraph
from raygnn.inference.logged_rows import LoggedRows
from raygnn.inference.open_graph import OpenGraph
from raygnn.inference.result_tables import Table
from raygnn.inference.row_tables import note_on_times, read_times
from raygnn.loops.model_spec import ModelSpec
from raygnn.serving.messages import (
    Answer,
    AnsweredRows,
    Embed,
    Explain,
    Predict,
    Question,
    Refused,
    Score,
    TopK,
    Version,
)
from raygnn.trained_model import TrainedModel

_MAX_SHOWN = 20  # letters of a text of the client
_TIMES_KEPT = 4  # times of top-k, each with embeddings of all nodes
_LOOK_EVERY_S = 0.1
_RETRY_AFTER_S = 2.0

_LOGGER = logging.getLogger(__name__)


class Answers:
    """A model with an open graph, which answers several questions at a time.

    Top-k compares all nodes: their embeddings are computed at its first question, and at the first
    one for another time, and kept. Neighborhoods are those of the run's evaluation.

    Args:
        precomputed: encodes all nodes now, so that questions only look rows up; otherwise each node
            is encoded from its own neighborhood.
        as_of: see `TrainedModel.open`, which also lists the errors.
        columns: table columns that clients may request.
        follow: folder or URI of an event log, whose rows are part of the graph.
        start: position and sha256 of the log that the graph's tables contain.
        until: position of the log to stop at; None reads all.
        is_alone: computes each question alone, so that its answer can be computed again bit for
            bit.

    Raises:
        ConfigError: the model or an option cannot follow a log.
    """

    def __init__(
        self,
        model: TrainedModel,
        graph: Any = None,
        *,
        precomputed: bool = False,
        as_of: str | Time | None = None,
        columns: Collection[str] = (),
        follow: str | None = None,
        start: tuple[int, str] = (0, ""),
        until: int | None = None,
        is_alone: bool = False,
    ) -> None:
        self._columns = columns
        self._is_alone = is_alone
        self._every = model.open(graph, as_of=as_of)
        self._near = self._every
        self._at = lru_cache(_TIMES_KEPT)(self._every.as_of)
        if precomputed:
            self._every.precompute()
        else:
            self._near = model.open(graph, own_batches=True, as_of=as_of)
        ends = dict.fromkeys(model.spec.output.ends)
        for node_type in ends:  # compiles what the first question would wait for
            self._near.embed(self._near.bundle.ids(node_type).slice(0, 1), node_type=node_type)
        saved, bundle = self._near.saved, self._near.bundle
        self._version = Version(saved.fingerprint, bundle.fingerprint)
        self._rows, self._log = None, None
        if follow is not None:
            check_can_follow(saved.spec, precomputed=precomputed)
            self._rows = LoggedRows.of(self._near, start[0])
            self._rows.sha256 = start[1]
            self._log = EventLog(follow, *start)
        self._live = self._near, self._version
        self.catch_up(until)

    def catch_up(self, until: int | None = None) -> None:
        """Adds the rows that were appended to the log, or those until a position. Raises a
        DataError if the log is damaged, or does not have the position.
        """
        if self._rows is None or self._log is None:
            return
        is_first = self._live[1].position is None
        if self._rows.follow(self._log, until) or is_first:
            graph = ExtendedGraph(self._near, self._rows.addition)
            version = replace(self._version, position=self._rows.position, log=self._rows.sha256)
            self._live = graph, version

    def follow(self) -> None:
        """Adds rows as they are appended, in a thread, while the process runs.

        A damaged log is reported once; answers then stay at the position before the damage.
        """

        def look() -> None:
            while self._rows is not None:
                time.sleep(_LOOK_EVERY_S)
                try:
                    self.catch_up()
                except DataError:
                    _LOGGER.exception("The event log is not followed any more.")
                    return
                except Exception:
                    _LOGGER.exception("The event log could not be read.")
                    time.sleep(_RETRY_AFTER_S)

        threading.Thread(target=look, name="raygnn-follow", daemon=True).start()

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions in order, each as if it had come alone."""
        live = self._live
        alike: dict[Any, list[int]] = defaultdict(list)
        for place, question in enumerate(questions):
            kind = tuple(question.options().items())
            alone = place if self._is_alone or question.new is not None else None
            alike[type(question), type(question.items[0]), kind, alone].append(place)
        answers: list[Answer] = [AnsweredRows([])] * len(questions)
        for places in alike.values():
            replies = self._answer_alike([questions[place] for place in places], *live)
            for place, answer in zip(places, replies, strict=True):
                answers[place] = answer
        return answers

    def _answer_alike(
        self, questions: Sequence[Question], near: OpenGraph, version: Version
    ) -> list[Answer]:
        """If questions with the same options fail together, each half is answered alone."""
        try:
            return self._answer_together(questions, near, version)
        except Exception as error:  # noqa: BLE001, `_refused` logs what is not expected
            if len(questions) == 1:
                return [_refused(questions[0], error)]
        middle = len(questions) // 2
        halves = questions[:middle], questions[middle:]
        return [answer for half in halves for answer in self._answer_alike(half, near, version)]

    def _answer_together(
        self, questions: Sequence[Question], near: OpenGraph, version: Version
    ) -> list[Answer]:
        items = [item for question in questions for item in question.items]
        first, graph = questions[0], near
        if self._rows is not None:
            check_can_answer(first, near)
        if isinstance(first, TopK):
            if hidden := [name for name in first.columns if name not in self._columns]:
                rule = "this server does not return them"
                remedy = f"It gives: {', '.join(self._columns) or 'none'}"
                raise ConfigError.invalid("columns", hidden, rule, remedy, id="serve-columns")
            graph = self._every if first.time is None else self._at(first.time)
            if not graph.is_precomputed:
                graph.precompute()
        if first.new is not None:  # questions with new nodes are answered alone
            rows = AddedRows(first.new.nodes, first.new.edges)
            graph = ExtendedGraph(graph, rows)
        return [
            AnsweredRows(rows, self._notes(question, near), version)
            for rows, question in zip(_answers(graph, questions, items), questions, strict=True)
        ]

    def _notes(self, question: Question, near: OpenGraph) -> list[str]:
        end = near.moment
        if (
            end is None
            or not isinstance(question, Predict | Explain | TopK)
            or question.time is None
        ):
            return []
        if isinstance(question, TopK):
            moment = self._at(question.time).moment
            times = np.array([end.time if moment is None else moment.time])
        else:
            times = read_times(question.times, end.unit)
        note = note_on_times(times, end)
        return [] if note is None else [note]


def check_can_follow(spec: ModelSpec, *, precomputed: bool) -> None:
    """Raises a ConfigError if a model, or precomputed embeddings, cannot follow an event log."""
    if precomputed:
        raise ConfigError(
            "--precomputed=True is invalid: embeddings would be older than the log. Leave it out, "
            "or --follow. [serve-follow-precomputed]"
        )
    if spec.output.predicted_edges is not None:
        raise ConfigError(
            "--follow is invalid: the model predicts edges. Leave it out. [serve-follow-edges]"
        )


def check_can_answer(question: Question, graph: OpenGraph) -> None:
    """Raises a ConfigError for questions about all nodes, or about links at their own times."""
    links, times = graph.saved.spec.output.links, graph.times
    has_own = times is not None and any(times.of(edge_type_name(link)) is None for link in links)
    if isinstance(question, TopK) or (isinstance(question, Score) and has_own):
        raise ConfigError(
            f"/{_ROUTE_OF[type(question)]} is not answered with "
            f"--follow{'' if isinstance(question, TopK) else ' and without --as-of'}. Ask a server "
            "without it. [serve-follow-question]"
        )


_ROUTE_OF = {TopK: "top_k", Score: "score"}


def _refused(question: Question, error: Exception) -> Refused:
    if isinstance(error, ConfigError | DataError):
        return Refused(shortened(str(error), question.model_dump()), error.id or "")
    _LOGGER.error("A request failed.", exc_info=error)
    message = f"the model failed: {type(error).__name__}. The log of the replica has the reason."
    return Refused(message, "serve-failed", is_question_wrong=False)


def shortened(message: str, request: Any) -> str:
    """A message with shortened texts of a request, because clients choose their length. It shows
    at most five texts, so at most 100 letters come from the request.
    """
    texts = {text for text in _texts(request) if len(text) > _MAX_SHOWN}
    for text in sorted(texts, key=len, reverse=True):
        for shown in (text, repr(text)[1:-1]):
            message = message.replace(shown, f"{shown[: _MAX_SHOWN - 3]}...")
    return message


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _answers(
    graph: OpenGraph, questions: Sequence[Question], items: list[Any]
) -> list[list[dict[str, Any]]]:
    first = questions[0]
    if isinstance(first, TopK):
        return _neighbors(graph, questions, items)
    rows = _rows(graph, questions, items)
    ends = accumulate((len(question.items) for question in questions), initial=0)
    return [rows[begin:end] for begin, end in pairwise(ends)]


def _neighbors(
    graph: OpenGraph, questions: Sequence[Question], anchors: list[Any]
) -> list[list[dict[str, Any]]]:
    table = graph.top_k(anchors, **questions[0].model_dump(exclude={"anchors", "new", "time"}))
    by_anchor: dict[Any, list[dict[str, Any]]] = {anchor: [] for anchor in anchors}
    for row in _plain(table):
        by_anchor[row["anchor_id"]].append(row)
    return [
        [row for anchor in dict.fromkeys(question.items) for row in by_anchor[anchor]]
        for question in questions
    ]


def _rows(
    graph: OpenGraph, questions: Sequence[Question], items: list[Any]
) -> list[dict[str, Any]]:
    first = questions[0]
    if isinstance(first, Predict | Explain):
        times = [t for q in questions if isinstance(q, Predict | Explain) for t in q.times]
        nodes, rows = (items, None) if first.time is None else (None, {"id": items, "time": times})
        if isinstance(first, Explain):
            options = ExplainOptions(num_edges=first.num_edges, num_columns=first.num_columns)
            of_pairs = isinstance(items[0], tuple) and rows is None
            seeds = {"pairs": nodes} if of_pairs else {"nodes": nodes, "rows": rows}
            return _with_plain_dates(graph.explain(options=options, **seeds).records)
        if isinstance(items[0], tuple) and graph.saved.spec.output.predicted_edges is None:
            raise ConfigError(
                f"{items[0]} is a pair, and the model predicts nodes. Send ids. [serve-pairs]"
            )
        table = graph.predict(nodes, what=first.what, rows=rows)
    elif isinstance(first, Embed):
        table = graph.embed(items, **first.options())
    else:
        assert isinstance(first, Score)
        table = graph.score(items, **first.options())
    return _plain(table)


def _plain(table: Table) -> list[dict[str, Any]]:
    return _with_plain_dates(table.arrow.to_pylist())


def _with_plain_dates(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        for name, value in row.items():
            if isinstance(value, date):  # or a datetime
                row[name] = value.isoformat()
    return rows
