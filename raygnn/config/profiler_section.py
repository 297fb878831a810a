"""The section about profiling: which steps are traced, and what of them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from raygnn.config.problems import Problem
from raygnn.config.section import NonEmptyText, NonNegativeWhole, PositiveWhole, Section

_SCHEDULE = ("wait", "warmup", "active", "repeat")


class Profiler(Section):
    """Traces some steps of each rank: by a schedule, or from one micro-batch to another."""

    wait: NonNegativeWhole | None = Field(
        default=None, description="Steps of a cycle that are not traced; null is 1."
    )
    warmup: NonNegativeWhole | None = Field(
        default=None,
        description="Steps then that are traced and thrown away, as tracing begins slowly; "
        "null is 1.",
    )
    active: PositiveWhole | None = Field(
        default=None, description="Steps then that are traced and kept; null is 3."
    )
    repeat: NonNegativeWhole | None = Field(
        default=None, description="Cycles; 0 goes on to the end of training, null is 1."
    )
    begin_batch: PositiveWhole | None = Field(
        default=None,
        description="First micro-batch to trace, counted from 1 over all workers, instead of a "
        "schedule; the whole step it is in is traced.",
    )
    end_batch: PositiveWhole | None = Field(
        default=None, description="Last micro-batch to trace; required with `begin_batch`."
    )
    with_stack: bool = Field(
        default=False, description="Trace the Python source line of each operation."
    )
    record_shapes: bool = Field(default=False, description="Trace the shapes of inputs.")
    profile_memory: bool = Field(
        default=False, description="Trace how memory is allocated and freed."
    )
    sync_timings: bool = Field(
        default=True,
        description="Wait for the GPU at the end of each traced step, so that its work counts to "
        "the step that asked for it.",
    )
    logs_uri: NonEmptyText | None = Field(
        default=None,
        description="Folder or URI of the traces; null is `profiler` in the run's log folder.",
    )

    @property
    def by_batch(self) -> bool:
        """Whether micro-batches, and not a schedule, say what is traced."""
        return self.begin_batch is not None

    def broken_rules(self) -> Iterable[Problem]:
        if (self.begin_batch is None) != (self.end_batch is None):
            missing = "begin_batch" if self.begin_batch is None else "end_batch"
            yield Problem((missing,), "begin_batch and end_batch go together", f"Set {missing} too")
        elif self.begin_batch is not None and self.end_batch is not None:
            if self.end_batch < self.begin_batch:
                yield Problem(
                    ("end_batch",),
                    f"it is before begin_batch, which is {self.begin_batch}",
                    f"Set at least {self.begin_batch}",
                )
            for name in _SCHEDULE:
                if getattr(self, name) is not None:
                    yield Problem(
                        (name,),
                        "a schedule and begin_batch exclude each other",
                        f"Set begin_batch and end_batch to null, or {name} to null",
                    )
