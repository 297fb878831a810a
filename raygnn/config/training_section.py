"""The sections about the course of training: limits, early stopping, checkpoints, profiling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from raygnn.config.section import (
    Component,
    NonEmptyText,
    NonNegativeNumber,
    NonNegativeWhole,
    Period,
    PositiveNumber,
    PositiveWhole,
    Rule,
    Section,
)
from raygnn.errors import Problem, RuleError, choose_from

_LIMITS = ("max_epochs", "max_steps", "max_samples", "max_time_s")

_RESUME_WORDS = ("auto", "never", "must", "last", "best")

_LOSSES = ("val/loss", "train/loss")

_GRAD_REDUCTIONS = ("sample_mean", "batch_mean", "sum")


def _check_monitor(name: str) -> str:
    if name.startswith("test/"):
        rule = "decisions must not look at the test split"
        raise RuleError(rule, f"Set val/{name.removeprefix('test/')}", id="monitor-test-split")
    if not any(name.startswith(split) and name != split for split in ("val/", "train/")):
        remedy = f"Set it with its split, as in val/{name.strip('/') or 'loss'}"
        raise RuleError("it is not the name of a logged metric", remedy, id="monitor-name")
    return name


def _check_resume(resume: str) -> str:
    if resume not in _RESUME_WORDS and "/" not in resume:
        rule = "unknown value; a path must contain a /"
        remedy = choose_from(resume, _RESUME_WORDS) + ", or a path or URI"
        raise RuleError(rule, remedy, id="resume-word")
    return resume


Monitor = Annotated[str, AfterValidator(_check_monitor)]

Resume = Annotated[str, Field(min_length=1), AfterValidator(_check_resume)]


class PrecisionMap(Section):
    """Number formats one by one, instead of one name for all.

    Attributes:
        param: Format of weights. bf16 loses small updates.
        buffer: Format of buffers, such as BatchNorm's statistics.
        input: Format of features; raygnn's encoders compute in the format of their weights.
    """

    param: Literal["fp32", "bf16"] = "fp32"
    buffer: Literal["fp32", "bf16"] = "fp32"
    input: Literal["fp32", "bf16", "fp16"] = "fp32"


def _precision_kind(value: Any) -> str:
    return "map" if isinstance(value, Mapping | PrecisionMap) else "name"


Precision = Annotated[
    Annotated[Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16-true"], Tag("name")]
    | Annotated[PrecisionMap, Tag("map")],
    Discriminator(_precision_kind),
]


class Training(Section):
    """Length of training, intervals of validation and logging, and precision.

    Attributes:
        max_epochs: Limit in epochs; null is none.
        max_steps: Limit in optimizer steps.
        max_samples: Limit in seeds of all workers.
        max_time_s: Limit in seconds of training.
        validate_every: When to validate, besides at the end; null is after whole epochs, at least
            20 steps apart, and about 40 steps apart where LightGBM predicts rows with times too.
        validate_at_start: Validate before the first step too.
        num_val_batches: Validation batches, over all workers; null is all.
        num_test_batches: Test batches, over all workers; null is all.
        log_every: When to log training metrics.
        global_batch_size: Seeds per optimizer step: batch_size x workers x accumulated batches.
        accumulate_grad_batches: Micro-batches per worker and step; null derives it, or is 1.
        clip_grad_norm: Largest norm of the gradient; null does not clip.
        loss_reduction: Whether the loss of a micro-batch is the mean or the sum over its seeds.
        grad_reduction: How the losses of a step's micro-batches combine: sample_mean (by seeds),
            batch_mean, sum, or the dotted path of a function that weighs a micro-batch; null is
            sample_mean, or sum with `loss_reduction: sum`.
        ema_decay: Decay of a moving average of the weights, smaller in the first steps, which is
            then validated, tested and exported; null keeps none, but for training tables 0.98.
        precision: Number format: one name, or a map of formats for param, buffer and input.
        matmul_precision: Precision of products of float32 matrices, as torch names it: high is
            TF32, medium is bfloat16. null is high on a GPU, and torch's setting on a CPU.
        refit: Train again on training and validation rows, for as many epochs as the best
            validation had; see training.md.
        compile: Compile the model with torch.compile; needs a C++ compiler.
        cuda_graphs: On a GPU, record the kernels of node, edge and link tasks as CUDA graphs, for
            batches padded to a few sizes.
        eval: Evaluate on sampled neighborhoods, or exactly, on all edges: layer by layer, or with
            `sampling.temporal` on all neighbors up to the time of each seed.
    """

    max_epochs: PositiveWhole | None = 100
    max_steps: PositiveWhole | None = None
    max_samples: PositiveWhole | None = None
    max_time_s: PositiveNumber | None = None
    validate_every: Period | None = None
    validate_at_start: bool = False
    num_val_batches: PositiveWhole | None = None
    num_test_batches: PositiveWhole | None = None
    log_every: Period = Period(steps=20)
    global_batch_size: PositiveWhole | None = None
    accumulate_grad_batches: PositiveWhole | None = None
    clip_grad_norm: PositiveNumber | None = None
    loss_reduction: Literal["mean", "sum"] = "mean"
    grad_reduction: NonEmptyText | None = None
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Precision = "fp32"
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    refit: bool = False
    compile: bool = False
    cuda_graphs: bool = True
    eval: Literal["sampled", "exact"] = "sampled"

    # fmt: off
    rules = (
        Rule("training-reductions-clash", "grad_reduction",
             lambda t: t.loss_reduction == "sum" and t.grad_reduction == "sample_mean",
             "sums over seeds are not averaged over seeds again",
             "Set loss_reduction: mean, or grad_reduction: sum or batch_mean"),
    )
    # fmt: on

    def broken_rules(self) -> Iterable[Problem]:
        chosen = self.grad_reduction
        if chosen is not None and "." not in chosen and chosen not in _GRAD_REDUCTIONS:
            remedy = choose_from(chosen, _GRAD_REDUCTIONS) + ", or a dotted path"
            yield Problem(
                ("grad_reduction",), "unknown reduction", remedy, id="training-reduction-unknown"
            )
        if all(getattr(self, name) is None for name in _LIMITS):
            rule, remedy = "training would never end", f"Set at least one of: {', '.join(_LIMITS)}"
            yield Problem(("max_epochs",), rule, remedy, id="training-endless")

    @property
    def combined_by(self) -> str:
        return self.grad_reduction or ("sum" if self.loss_reduction == "sum" else "sample_mean")

    def planned_steps(self, steps_per_epoch: int) -> int | None:
        """The limit in optimizer steps that steps and epochs give; None without one."""
        of_epochs = None if self.max_epochs is None else self.max_epochs * steps_per_epoch
        return min((x for x in (self.max_steps, of_epochs) if x is not None), default=None)


class EarlyStopping(Section):
    """Ends training when a metric has not improved for a while.

    Attributes:
        monitor: Metric to watch; null is val/full_ndcg@20 or val/mrr of link prediction, else
            val/loss.
        mode: Whether lower (min) or higher (max) is better; required with a `monitor` that is not a
            loss.
        patience: Validations without improvement before training ends.
        min_delta: Smallest change that counts as an improvement; null is a thousandth of the best
            value for the default metric of link prediction, and of rows with times that LightGBM
            predicts too, else 0.
    """

    monitor: Monitor | None = None
    mode: Literal["min", "max"] = "min"
    patience: PositiveWhole = 3
    min_delta: NonNegativeNumber | None = None

    def broken_rules(self) -> Iterable[Problem]:
        return _missing_mode(self)


def _missing_mode(section: EarlyStopping | Checkpoint) -> Iterator[Problem]:
    is_open = section.mode is None or "mode" not in section.model_fields_set
    if section.monitor not in (None, *_LOSSES) and is_open:
        rule, remedy = f"it is required with monitor: {section.monitor}", "Set min or max"
        yield Problem(("mode",), rule, remedy, id="monitor-mode")


class InitFrom(Section):
    """Initial weights from an earlier run.

    Attributes:
        uri: Folder of a trained model or of a checkpoint, or a safetensors file.
        include: Patterns of the names of weights to load.
        exclude: Patterns of the names of weights not to load.
        freeze: Patterns of the names of weights that training does not change.
        strict: Fail if the file lacks a weight of the model that the patterns select.
    """

    uri: NonEmptyText
    include: list[NonEmptyText] = Field(default=["*"])
    exclude: list[NonEmptyText] = Field(default_factory=list)
    freeze: list[NonEmptyText] = Field(default_factory=list)
    strict: bool = True


class Keep(Section):
    """The number of checkpoints to keep. The targets of `best` and `last` always stay.

    Attributes:
        last: How many of the newest to keep.
        best: How many of the best to keep, with `policy: best`.
    """

    last: PositiveWhole = 1
    best: PositiveWhole = 1

    @model_validator(mode="before")
    @classmethod
    def _accept_a_number(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"last": value} if is_number else value


class Checkpoint(Section):
    """Saving, keeping and resuming of checkpoints.

    Attributes:
        policy: Which checkpoints to keep: all; the best and the last; the last; none.
        every: When to save; null is at each validation.
        keep: How many to keep; one number is `last`.
        monitor: Metric of `best`; null is that of early stopping.
        mode: Whether lower (min) or higher (max) is better; required with `monitor`.
        resume: auto, must, last, best, never, or the path or URI of a checkpoint or of a run; see
            checkpoints.md.
        init_from: Initial weights of a new run; null is random initialisation.
    """

    policy: Literal["all", "best", "last", "none"] = "best"
    every: Period | None = None
    keep: Keep = Keep()
    monitor: Monitor | None = None
    mode: Literal["min", "max"] | None = None
    resume: Resume = "auto"

    init_from: InitFrom | None = None

    # fmt: off
    rules = (
        Rule("monitor-mode-alone", "mode", lambda checkpoint: checkpoint.monitor is None,
             "it belongs to checkpoint.monitor, which is not set",
             "Set checkpoint.monitor too, or early_stopping.mode instead"),
    )
    # fmt: on

    def broken_rules(self) -> Iterable[Problem]:
        return _missing_mode(self)


class Scheduler(Component):
    """A learning-rate scheduler, and when it steps.

    Attributes:
        interval: Unit of the scheduler's steps.
        frequency: Intervals between two of its steps.
        monitor: Metric for ReduceLROnPlateau; null is early stopping's.
    """

    interval: Literal["step", "epoch"] = "step"
    frequency: PositiveWhole = 1
    monitor: Monitor | None = None


class LossTerm(Component):
    """One term of the loss: raygnn's, torch.nn's, or your own module or function.

    Attributes:
        weight: Factor of this term in the sum.
        on: Output of the model that the term reads; null is the only one.
        inputs: Inputs of the task for parameters of the term with other names, as in {input:
            prediction}.
    """

    weight: NonNegativeNumber = 1.0
    on: str | None = None
    inputs: dict[str, NonEmptyText] = Field(default_factory=dict)


class Profiler(Section):
    """Traces some steps of each rank: by a schedule, or from one micro-batch to another.

    Attributes:
        wait: Steps of a cycle that are not traced; null is 1.
        warmup: Next steps, which are traced and discarded, because tracing starts slowly; null is
            1.
        active: Next steps, which are traced and kept; null is 3.
        repeat: Cycles; 0 repeats to the end of training, null is 1.
        begin_batch: First micro-batch to trace, counted from 1 over all workers, instead of a
            schedule; traces its whole step.
        end_batch: Last micro-batch to trace; required with `begin_batch`.
        with_stack: Trace the Python source line of each operation.
        record_shapes: Trace the shapes of inputs.
        profile_memory: Trace how memory is allocated and freed.
        sync_timings: Wait for the GPU at the end of each traced step, so that its work counts for
            the step that started it.
        logs_uri: Folder or URI of the traces; null is `profiler` in the run's log folder.
    """

    wait: NonNegativeWhole | None = None
    warmup: NonNegativeWhole | None = None
    active: PositiveWhole | None = None
    repeat: NonNegativeWhole | None = None
    begin_batch: PositiveWhole | None = None
    end_batch: PositiveWhole | None = None
    with_stack: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    sync_timings: bool = True
    logs_uri: NonEmptyText | None = None

    # fmt: off
    rules = (
        Rule("profiler-range-schedule", "wait warmup active repeat", lambda p: p.by_batch,
             "a schedule and begin_batch exclude each other",
             "Set it to null, or begin_batch and end_batch to null"),
    )
    # fmt: on

    @property
    def by_batch(self) -> bool:
        return self.begin_batch is not None

    def broken_rules(self) -> Iterable[Problem]:
        if (self.begin_batch is None) != (self.end_batch is None):
            missing = "begin_batch" if self.begin_batch is None else "end_batch"
            rule = "begin_batch and end_batch go together"
            yield Problem((missing,), rule, f"Set {missing} too", id="profiler-range-half")
        elif (self.end_batch or 0) < (self.begin_batch or 0):
            rule, remedy = f"begin_batch is {self.begin_batch}", f"Set at least {self.begin_batch}"
            yield Problem(("end_batch",), rule, remedy, id="profiler-range-order")
