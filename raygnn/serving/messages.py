"""Requests and answers of a served model: the JSON schema of the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

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

from raygnn.data.plain_json import read_json, refuse
from raygnn.inference.explain.options import ExplainOptions
from raygnn.inference.job import TopKOptions

#: Neighbors in one answer: anchors times k.
MAX_NEIGHBORS = 100_000
#: Nodes of one request for explanations, each of which takes about half a second.
MAX_EXPLAINED = 20

_FIRST_PROBLEM: Any = Field(fail_fast=True)  # a list of 10,000 may have as many problems

NodeId: TypeAlias = StrictInt | StrictStr
NodeIds: TypeAlias = Annotated[
    Annotated[list[StrictInt], _FIRST_PROBLEM] | Annotated[list[StrictStr], _FIRST_PROBLEM],
    Field(min_length=1, description="Original ids of the graph's tables."),
]
Pairs: TypeAlias = Annotated[
    list[tuple[NodeId, NodeId]],
    Field(
        min_length=1, fail_fast=True, description="Original ids of anchors and targets, by pair."
    ),
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


class Events(NewRows):
    """New nodes and edges, to be appended to the log that the server follows."""

    key: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Name of these rows. Rows of a key that was sent before are not repeated."
    )

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """As `Question.parse`."""
        return cls.model_validate(read_json(body, 1))


class RefusedEvent(BaseModel):
    """A row that does not fit the graph. `row` counts those of its type in the request."""

    type: str
    row: int
    reason: str
    id: str


class Appended(BaseModel):
    """The end of the rows in the log, their number, and the rows that are not there."""

    position: int
    accepted: int
    refused: list[RefusedEvent] = []


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

    nodes: NodeIds | Pairs = Field(validation_alias=AliasChoices("nodes", "ids", "pairs"))
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
    """Predictions of nodes of the type that the model predicts, or of pairs of a model of edges."""

    what: Literal["predictions", "probabilities"] | None = Field(
        None, description="Null is predictions; probabilities gives one of each class or label."
    )


class Explain(_AtTimes):
    """Explanations of predictions of nodes or pairs, by columns and edges."""

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

    pairs: Pairs
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
    """The prediction of a node, or of a pair with both ids; `probability` of classes, and a list
    with `what: probabilities`; the ends of the range that contains 80 % of the numbers.

    `time` is that of the request, as ISO 8601 in UTC where it is a date.
    """

    id: NodeId | None = None
    source_id: NodeId | None = None
    target_id: NodeId | None = None
    time: Moment | None = None
    prediction: int | float | str | list[int] | list[float] | None = None
    probability: float | list[float] | None = None
    low: float | None = None
    high: float | None = None


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
    effect: float


class ExplainedEdge(BaseModel):
    """An edge that the prediction depends on."""

    edge_type: str
    source_id: NodeId
    target_id: NodeId
    importance: float


class Explained(BaseModel):
    """An explanation of a node, or of a pair with both ids; see the tables of `raygnn explain`."""

    model_config = ConfigDict(extra="allow")

    id: NodeId | None = None
    from_id: NodeId | None = None
    to_id: NodeId | None = None
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
    """A neighbor of an anchor, with the requested columns; `rank` counts from 1."""

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


@dataclass(frozen=True)
class Version:
    """The model, graph and log of an answer. They give the same request the same answer.

    Attributes:
        model, snapshot: fingerprints of the model's files and of the graph.
        position: rows of the event log that were added; None without a log.
        log: sha256 that identifies these rows.
    """

    model: str
    snapshot: str
    position: int | None = None
    log: str = ""

    @property
    def headers(self) -> dict[str, str]:
        named = {"Raygnn-Model": self.model, "Raygnn-Snapshot": self.snapshot}
        if self.position is not None:
            named["Raygnn-Position"] = str(self.position)
        return {**named, "ETag": f'"{"-".join(named.values())}"'}


class AnsweredRows(list[dict[str, Any]]):
    """The rows of an answer, as JSON has them, with notes for the client."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        notes: Iterable[str] = (),
        version: Version | None = None,
    ) -> None:
        super().__init__(rows)
        self.notes, self.version = list(notes), version


#: Rows, or why there are none.
Answer: TypeAlias = AnsweredRows | Refused
