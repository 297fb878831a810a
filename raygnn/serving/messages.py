"""Requests and answers of a served model: the JSON schema of the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeAlias

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import from_json

from raygnn.errors import DataError
from raygnn.inference.explain_options import ExplainOptions
from raygnn.inference.job import TopKOptions

#: Ids, pairs or new rows in one request, and elements of a value of a new row.
MAX_ELEMENTS = 10_000
#: Neighbors in one answer: anchors times k.
MAX_NEIGHBORS = 100_000
#: Nodes of one request for explanations, each of which takes about half a second.
MAX_EXPLAINED = 20
#: Columns of a new row, and types of new rows.
MAX_COLUMNS = 1_000
#: Letters of an id, a name or another text.
MAX_TEXT = 1_000
# The deepest values are lists in the columns of new rows: body, new, nodes, type, row, column.
_MAX_OBJECT_DEPTH = 5
_MAX_LIST_DEPTH = 6
_INT64 = -(2**63), 2**63 - 1


def read_json(body: bytes) -> Any:
    """Parses a request's body. Raises a DataError unless it is JSON within the limits."""
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        refuse(f"it is not JSON ({error})", "Send an object")
    _check([content], 0)
    return content


def _check(value: list[Any] | dict[str, Any], depth: int) -> None:
    if isinstance(value, dict):
        if depth > _MAX_OBJECT_DEPTH:
            refuse("a value of a row is an object", "Give numbers, texts, or lists of them")
        if len(value) > MAX_COLUMNS:
            refuse(f"an object has {len(value):,} keys", f"Send at most {MAX_COLUMNS:,}")
        _check_text(max(value, key=len, default=""))
        elements = list(value.values())
    else:
        if depth > _MAX_LIST_DEPTH:
            refuse("lists are nested", "Give numbers, texts, or lists of them")
        if len(value) > MAX_ELEMENTS:
            refuse(f"a list has {len(value):,} elements", f"Send at most {MAX_ELEMENTS:,}")
        elements = value
    for element in elements:
        kind = type(element)
        if kind is float:
            if not math.isfinite(element):
                refuse("a number is not finite", "Send finite numbers, or null for a gap")
        elif kind is int:
            if not _INT64[0] <= element <= _INT64[1]:
                refuse("an integer has more than 64 bits", "Send smaller ones")
        elif kind is str:
            _check_text(element)
        elif kind is list or kind is dict:
            _check(element, depth + 1)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        refuse(f"a text has {len(text):,} characters", f"Send at most {MAX_TEXT:,}")


def refuse(problem: str, remedy: str) -> NoReturn:
    raise DataError(f"the request is invalid: {problem}. {remedy}.", id="serve-request")


_FIRST_PROBLEM: Any = Field(fail_fast=True)  # a list of 10,000 may have as many problems

NodeId: TypeAlias = StrictInt | StrictStr
NodeIds: TypeAlias = Annotated[
    Annotated[list[StrictInt], _FIRST_PROBLEM] | Annotated[list[StrictStr], _FIRST_PROBLEM],
    Field(min_length=1, description="Original ids of the graph's tables."),
]
Moment: TypeAlias = StrictInt | StrictFloat | StrictStr
Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, Annotated[list[Row], _FIRST_PROBLEM]]


class NewRows(BaseModel):
    """New nodes and edges, which this request alone sees, by the columns of the graph's tables."""

    model_config = ConfigDict(extra="forbid")

    nodes: Rows = Field(default={}, description="Rows by node type, with their ids and features.")
    edges: Rows = Field(
        default={}, description="Rows by edge type, src__rel__dst; ends are known or new nodes."
    )


class Question(BaseModel):
    """A request. Requests that differ in `ITEMS` alone are answered in one batch."""

    model_config = ConfigDict(extra="forbid")

    ITEMS: ClassVar[str]

    new: NewRows | None = Field(
        None, description="New nodes and edges: answers as if they were in the graph's tables."
    )

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The question in the body of a request. Raises a DataError if it is not JSON, or breaks a
        limit, a ValidationError if it does not fit the schema.
        """
        return cls.model_validate(read_json(body))

    @property
    def items(self) -> list[Any]:
        return list(getattr(self, self.ITEMS))

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={self.ITEMS, "new"})


class _AtTimes(Question):
    ITEMS: ClassVar[str] = "nodes"

    nodes: NodeIds = Field(validation_alias=AliasChoices("nodes", "ids"))
    time: Moment | Annotated[list[Moment], _FIRST_PROBLEM] | None = Field(
        None,
        description="What is known at this time: one for all nodes, or one each; an ISO 8601 date, "
        "or a number where the times of the graph are such. Null takes all of the graph.",
    )

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if isinstance(self.time, list) and len(self.time) != len(self.nodes):
            raise ValueError(f"{len(self.time)} times for {len(self.nodes)} ids; send one each")
        return self

    def options(self) -> dict[str, Any]:
        return {**super().options(), "time": self.time is not None}

    @property
    def times(self) -> list[Any]:
        return self.time if isinstance(self.time, list) else [self.time] * len(self.nodes)


class Predict(_AtTimes):
    """Predictions of nodes of the type that the model predicts."""

    what: Literal["predictions", "probabilities"] | None = Field(
        None, description="Null is predictions; probabilities gives one of each class or label."
    )


class Explain(_AtTimes):
    """Explanations of predictions of nodes, by columns and edges."""

    num_edges: int = Field(ExplainOptions.num_edges, ge=1, description="Most edges of a row.")
    num_columns: int = Field(
        ExplainOptions.num_columns, ge=1, description="Most columns of each part of the model."
    )

    @classmethod
    def parse(cls, body: bytes) -> Self:
        question = super().parse(body)
        if len(question.nodes) > MAX_EXPLAINED:
            refuse(f"{len(question.nodes):,} nodes", f"Send at most {MAX_EXPLAINED}")
        return question


class Embed(Question):
    """Embeddings of nodes."""

    ITEMS: ClassVar[str] = "nodes"

    nodes: NodeIds
    node_type: str | None = Field(
        None, description="Null takes the type that is predicted, or of both ends of the links."
    )


class Score(Question):
    """Scores of links between given nodes."""

    ITEMS: ClassVar[str] = "pairs"

    pairs: Annotated[list[tuple[NodeId, NodeId]], Field(min_length=1, fail_fast=True)] = Field(
        description="Original ids of anchor and target."
    )
    edge_type: str | None = Field(None, description="src__rel__dst, of several relations.")
    score: Literal["decoder", "inner_product"] | None = Field(
        None, description="Null takes the decoder of a model of links, else the inner product."
    )


class TopK(Question, TopKOptions):
    """The k nodes of highest score for each anchor, by exact embeddings of all nodes."""

    ITEMS: ClassVar[str] = "anchors"

    anchors: NodeIds
    k: int = Field(10, ge=1, lt=2**31, description="Neighbors of each anchor.")
    time: Moment | None = Field(
        None, description="What is known at this time; see `Predict`. Null takes all of the graph."
    )

    @classmethod
    def parse(cls, body: bytes) -> Self:
        question = super().parse(body)
        num_neighbors = len(question.anchors) * question.k
        if num_neighbors > MAX_NEIGHBORS:
            refuse(
                f"anchors times k is {num_neighbors:,}", f"Ask for at most {MAX_NEIGHBORS:,} rows"
            )
        return question


class Prediction(BaseModel):
    """A node's prediction; `probability` of classes, and a list with `what: probabilities`.

    `time` is that of the request, as ISO 8601 in UTC where it is a date.
    """

    id: NodeId
    time: Moment | None = None
    prediction: int | float | str | list[int] | list[float] | None = None
    probability: float | list[float] | None = None


class Part(BaseModel):
    """A part of the model, such as `lightgbm`, its weight, and what it predicts alone."""

    part: str
    weight: float
    score: float


class ExplainedColumn(BaseModel):
    """A column that a part of the model reads, and what it adds to the prediction."""

    part: str
    node_type: str
    table: str
    column: str
    element: int | None
    value: str | None
    importance: float
    effect: float


class ExplainedEdge(BaseModel):
    """An edge that the prediction depends on."""

    edge_type: str
    source_id: NodeId
    target_id: NodeId
    importance: float


class Explained(BaseModel):
    """An explanation; see the tables of `raygnn explain`."""

    model_config = ConfigDict(extra="allow")

    id: NodeId
    time: Moment | None = None
    prediction: int | float | str
    score: float
    sentence: str
    parts: list[Part]
    columns: list[ExplainedColumn]
    edges: list[ExplainedEdge]


class Embedding(BaseModel):
    """A node's embedding."""

    id: NodeId
    embedding: list[float]


class PairScore(BaseModel):
    """A pair's score; a larger one is a likelier link."""

    anchor_id: NodeId
    target_id: NodeId
    score: float


class Neighbor(BaseModel):
    """A neighbor of an anchor, with the columns that were asked for; `rank` counts from 1."""

    model_config = ConfigDict(extra="allow")

    anchor_id: NodeId
    neighbor_id: NodeId
    score: float
    rank: int


class Noted(BaseModel):
    """Fields of all answers beside their rows."""

    notes: list[str] = Field(
        [], description="Sentences on these rows, such as that their time is far beyond the graph."
    )


class Predictions(Noted):
    """Rows in the order of `nodes`."""

    rows: list[Prediction]


class ExplainedRows(Noted):
    """Rows in the order of `nodes`."""

    rows: list[Explained]


class EmbeddingRows(Noted):
    """Rows in the order of `nodes`."""

    rows: list[Embedding]


class PairScores(Noted):
    """Rows in the order of `pairs`."""

    rows: list[PairScore]


class Neighbors(Noted):
    """Rows anchor by anchor, each anchor once, best neighbor first."""

    rows: list[Neighbor]


@dataclass(frozen=True)
class Refused:
    """The error of a question without an answer, which is wrong, or else the model failed. Crosses
    process boundaries.
    """

    message: str
    id: str
    is_question_wrong: bool = True


class AnsweredRows(list[dict[str, Any]]):
    """The rows of an answer, as JSON has them, with notes for the client."""

    def __init__(self, rows: Iterable[dict[str, Any]], notes: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.notes = list(notes)


#: Rows, or why there are none.
Answer: TypeAlias = AnsweredRows | Refused
