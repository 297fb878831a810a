"""What a self-supervised model gives: embeddings, and the label that a probe reads from them."""

from __future__ import annotations

from dataclasses import dataclass

from raygnn.data.bundle import Bundle
from raygnn.loops.model_spec import Output
from raygnn.loops.tasks.node_classification.output import NodeOutput


@dataclass(frozen=True)
class EmbeddingOutput(Output):
    """Embeddings of the nodes of one type.

    Attributes:
        probe: the label by which embeddings are judged; None without labels or splits.
    """

    key = "embeddings"

    node_type: str
    probe: NodeOutput | None = None

    @property
    def ends(self) -> tuple[str, str]:
        """The node type, twice."""
        return self.node_type, self.node_type

    @property
    def judged_on_test(self) -> bool:
        """A probe needs training nodes beside those that it is judged on."""
        return True

    def check_labels(self, bundle: Bundle) -> None:
        """See `Output`."""
        if self.probe is not None:
            self.probe.check_labels(bundle)
