"""The training loop. It serves every task and is exact for any number of workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.config import LoadedConfig, Period
from raygnn.console import say
from raygnn.errors import ConfigError, PreemptedError, TrainingError
from raygnn.loops.callback_list import CallbackBase, CallbackList
from raygnn.loops.context import WorkerContext
from raygnn.loops.early_stopping import BestWeights, WeightAverage, best_tracker, early_stopper
from raygnn.loops.evaluation import evaluate_parts
from raygnn.loops.gradients import Accumulation, GradReduction, JointAccumulation
from raygnn.loops.optimization import Optimization
from raygnn.loops.position import Position, RunningMean, is_due, limit_reached
from raygnn.loops.step_graphs import can_record
from raygnn.loops.task import EvalOutput, Task
from raygnn.models.node_inputs import RowShare, rows_shared
from raygnn.parallel import collectives
from raygnn.parallel.agreement import agreement, raise_if_any_failed, run_and_sync_errors
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals, StepTotals, UnreadTotals
from raygnn.sampling.batch import Batch
from raygnn.sampling.batch_sequence import BatchSequence

#: Interval at which ranks ask Ray whether their node will be removed.
_ASK_HOST_EVERY_S = 5.0

#: Least number of steps between validations, unless `training.validate_every` is set.
_STEPS_BETWEEN_VALIDATIONS = 20

#: Saves a checkpoint: (engine, values to report to Ray, whether the model is the best so far).
Saver = Callable[["Engine", dict[str, float], bool], None]


class Engine:
    """Trains and tests a task on one rank.

    A step runs in this order: gradients, optimizer, step schedulers, log, validation, plateau
    scheduler, early stopping, checkpoint. It has at most one validation and one checkpoint.
    Collective: all ranks must call every public method.

    Args:
        callbacks: called at each event, after the callbacks of the model and the optimizer.
        save: writes a checkpoint; None keeps none.
        initialize: sets the first weights of a new model, if they are not random.
    """

    def __init__(
        self,
        task: Task,
        loaded: LoadedConfig,
        context: WorkerContext,
        callbacks: Sequence[CallbackBase] = (),
        save: Saver | None = None,
        initialize: Callable[[nn.Module], object] | None = None,
    ) -> None:
        self.task = task
        self.loaded = loaded
        self.config = loaded.config
        self.context = context
        self._initialize = initialize
        module = run_and_sync_errors(self._build_model, "building model and loaders")
        self.optimization = Optimization(module, loaded, context.device, task.configure_optimizers)
        task.model = module
        self.metrics = list(task.build_metrics())
        self.grad_reduction = GradReduction(loaded)
        decay = self.config.training.ema_decay
        self.average = None if decay is None else WeightAverage(module, decay)
        with self.optimization.gathered():
            sums, tables = self.optimization.statistics.sums, self.optimization.tables
            self.reducer = GradientReducer(module, task.step_metrics, context.device, sums, tables)
        self.callbacks = CallbackList(self, [*self._component_callbacks(), *callbacks])
        accumulation_class = Accumulation if task.joint_loss is None else JointAccumulation
        self.accumulation = accumulation_class(
            task,
            self.config,
            self.optimization,
            self.grad_reduction,
            context.device,
            self.callbacks,
            self.reducer,
        )
        self.position = Position()
        self.history: list[dict[str, float]] = []
        self.stop_reason: str | None = None
        self.stop_at: tuple[int, str] | None = None  # a step, and the reason
        self.interrupted_by: str | None = None
        self.resumed_from: str | None = None
        self.best = BestWeights(best_tracker(self.config, self.has_validation, task.watched))
        self.metrics_of_module: dict[str, float] = {}  # of the best validation, without a blend
        self.intervals: dict[str, tuple[float, float]] = {}  # of test metrics, by name
        self.diagnostics: dict[str, dict[str, Any]] = {}  # by name and split
        self.early_stopper = early_stopper(self.config, self.has_validation, task.watched)
        self._save = save
        self._log_window, self._validation_window = RunningMean(), RunningMean()
        self._spent_s, self._started_s = 0.0, time.monotonic()
        self._host_asked_s = self._started_s
        self.callbacks.call("on_setup")
        with agreement("setting up callbacks", ConfigError):
            self.callbacks.raise_failure()

    def train(self) -> None:
        """Trains until a limit or early stopping ends the run.

        Raises:
            TrainingError: a rank failed (all ranks raise), or a loss or gradient is not finite.
            PreemptedError: the run was asked to stop and has saved a checkpoint.
        """
        self._started_s = time.monotonic()
        self.callbacks.call("on_train_start")
        try:
            if self.config.training.validate_at_start and self.position.step == 0:
                self._validate_and_judge()
            with self.context.interruptible():
                if not self.task.learns:
                    self.stop_reason = "nothing is learned by gradients"
                    self._save_or_report(self._validate_and_judge(), self._report_of_validation())
                while self.stop_reason is None:
                    self._train_epoch()
            self.callbacks.call("on_train_end")
            with agreement("ending training"):
                self.callbacks.raise_failure()
        except BaseException as error:
            self.callbacks.call("on_exception", error)
            raise

    def test(self) -> dict[str, float]:
        """Evaluates the test split.

        Also sets `diagnostics`, from the validation split if there is no test split.
        """
        diagnostics, limits = self.task.diagnostics(), self.config.training
        evaluate = partial(evaluate_parts, self.task, moment=self._moment())
        split = "test"
        with self._evaluation():
            measures = [*self.metrics, *diagnostics]
            metrics = evaluate(split, limits.num_test_batches, measures, intervals=self.intervals)
            if diagnostics and not metrics:
                split = "val"
                evaluate(split, limits.num_val_batches, diagnostics)
        descriptions = {diagnostic.name: diagnostic.describe() for diagnostic in diagnostics}
        self.diagnostics = {
            name: {split: text} for name, text in descriptions.items() if text is not None
        }
        self.callbacks.call("on_test_end", metrics)
        return metrics

    def conclude(self) -> None:
        """Restores the best weights, and lets the task choose what predicts; the metrics of
        validation follow it.
        """
        module, limit = self.optimization.module, self.config.training.num_val_batches
        self.best.restore(module)
        training = module.training
        module.eval()
        with self._evaluation(), torch.no_grad():
            is_changed = self.task.conclude()
            self.metrics_of_module = dict(self.best.metrics)
            if is_changed:
                self.best.metrics |= evaluate_parts(self.task, "val", limit, self.metrics)
            self.task.refit()
        module.train(training)

    def _train_epoch(self) -> None:
        loader = self._train_loader
        start, total, epoch = self.position.batch_in_epoch, loader.num_batches, self.position.epoch
        self.callbacks.call("on_epoch_start", epoch)
        per_step = self.config.batch.num_micro_batches
        with closing(loader.iterate(epoch, start=start)) as batches:
            while start < total and self.stop_reason is None:
                stop = min(start + per_step, total)
                self._step(batches, epoch, start, stop, total)
                start = stop

    def _step(
        self, batches: Iterator[Batch], epoch: int, start: int, stop: int, total: int
    ) -> None:
        self.callbacks.call("on_train_step_start")
        self.callbacks.call("before_zero_grad")
        self.optimization.clear_gradients()
        self.callbacks.call("after_zero_grad")
        with self.optimization.gathered():
            failure, unread, norm = self._compute_gradients(batches, epoch, range(start, stop))
        # If hooks may still change the gradients, `_apply` computes their norm after the hooks.
        if norm is None and not self.callbacks.listen("after_sync_grad", "before_clip_grad_norm"):
            norm = self.optimization.grad_norm()
        totals, norms = unread.read(*([] if norm is None else [norm]))
        if totals.failed_ranks:
            where = f"training, epoch {epoch + 1}, batches {start} to {stop - 1}"
            raise_if_any_failed(failure, where)
        self._check_finite(totals)
        grad_norm = self._apply(totals, *norms)
        previous = self.position
        self.position = previous.advance(
            num_batches=stop - start, num_samples=totals.num_samples, epoch_batches=total
        )
        self._boundary(previous, totals, grad_norm)
        if self.interrupted_by is not None and self.stop_reason is None:
            raise PreemptedError(
                self._describe_interruption(), self.interrupted_by, id="run-stopped"
            )

    def _compute_gradients(
        self, batches: Iterator[Batch], epoch: int, indices: range
    ) -> tuple[BaseException | None, UnreadTotals, Tensor | None]:
        local = LocalTotals()
        if not self.optimization.module.training:  # visits every module
            self.optimization.module.train()
        self.optimization.statistics.clear()
        rank_indices = [i for i in indices if i % self.context.world_size == self.context.rank]
        failure = self.accumulation.run(batches, epoch, rank_indices, local)
        limit = self.config.training.max_time_s
        is_over = limit is not None and self.training_time_s >= limit
        local.stop, local.ask_host = is_over and self.context.rank == 0, self._asks_host()
        local.interrupted = self.context.interruption() is not None
        self.callbacks.call("before_sync_grad")
        callback_failure = self.callbacks.take_failure()
        failure = failure or callback_failure
        local.failed = failure is not None
        totals = self.reducer.reduce(local)
        if self.grad_reduction.divides and local.norm is None:
            self.reducer.scale(totals.factor)
        return failure, totals, local.norm

    def _apply(self, totals: StepTotals, norm: float | None = None) -> float:
        """Updates the weights with the summed gradients. Returns the gradient norm.

        `norm`: default: computed after the hooks that may change gradients.
        """
        self.callbacks.call("after_sync_grad", totals)
        self.callbacks.call("before_clip_grad_norm")
        norm = float(self.optimization.grad_norm()) if norm is None else norm
        grad_norm = self.optimization.clip(norm, self.position.step + 1)
        self.callbacks.call("after_clip_grad_norm", grad_norm)
        self.callbacks.call("before_optimizer_step")
        self.optimization.step()
        if self.average is not None:
            self.average.update(self.position.step)
        self.callbacks.call("after_optimizer_step")
        return grad_norm

    def _check_finite(self, totals: StepTotals) -> None:
        if not math.isfinite(totals.loss_sum):
            raise TrainingError(
                f"The training loss is {totals.loss_sum} at step {self.position.step + 1}. Lower "
                "optimizer.args.lr, or set training.clip_grad_norm. [training-loss-not-finite]"
            )

    def _boundary(self, previous: Position, totals: StepTotals, grad_norm: float) -> None:
        now, training = self.position, self.config.training
        epoch_ended = now.epoch > previous.epoch
        self.optimization.step_schedulers(step=now.step, epoch=now.epoch, epoch_ended=epoch_ended)
        self.callbacks.call("on_train_step_end", totals)
        self._log_window.add(totals, grad_norm=grad_norm)
        self._validation_window.add(totals)
        if is_due(training.log_every, previous, now):
            means = {**self._log_window.take(), **self.optimization.learning_rates()}
            self.callbacks.call("on_log", means)
        if epoch_ended:
            self.callbacks.call("on_epoch_end", previous.epoch)
        self.stop_reason = limit_reached(training, now, out_of_time=totals.stop)
        if self.stop_at is not None and now.step >= self.stop_at[0]:
            self.stop_reason = self.stop_at[1]
        self.interrupted_by = self._interruption(totals)
        improved = False
        report: dict[str, float] = {}
        if self.stop_reason or is_due(self.validate_every, previous, now):
            improved = self._validate_and_judge()
            report = self._report_of_validation()
        every = self.config.checkpoint.every
        save_is_due = bool(report) if every is None else is_due(every, previous, now)
        save_is_due |= improved and self.config.checkpoint.policy == "best"
        self._save_or_report(improved, report, save_is_due)

    def _report_of_validation(self) -> dict[str, float]:
        return {"validation": len(self.history), **self.history[-1]}

    def _save_or_report(
        self, improved: bool, report: dict[str, float], save_is_due: bool = True
    ) -> None:
        if self._save is not None and (save_is_due or self.stop_reason or self.interrupted_by):
            self._save(self, report, improved)
        elif report:
            self.context.report(report, None)

    def _validate_and_judge(self) -> bool:
        with nullcontext() if self.average is None else self.average.applied():
            return self._judge(self._validate())

    def _validate(self) -> dict[str, float]:
        self.callbacks.call("on_validation_start")
        self.optimization.sync_buffers()
        limit = self.config.training.num_val_batches
        means = self._validation_window.take()
        with self._evaluation():
            evaluated = evaluate_parts(
                self.task, "val", limit, self.metrics, self._watch_validation, self._moment()
            )
        metrics = {**means, **evaluated}
        record = {
            "step": self.position.step,
            "epoch": self.position.current_epoch,
            "samples": self.position.samples,
            **self.optimization.learning_rates(),
            **metrics,
            "time_s": round(self.training_time_s, 3),
        }
        self.history.append(record)
        self.callbacks.call("on_validation_end", metrics)
        return metrics

    def _judge(self, metrics: dict[str, float]) -> bool:
        # Not the task's default metric, which may be better when larger: the scheduler's default
        # mode is min.
        monitor = best_tracker(self.config, self.has_validation).monitor
        self.optimization.step_plateau(metrics, monitor)
        improved = self.best.update(metrics, self.position, self.optimization.module)
        stopper = self.early_stopper
        if stopper is not None and stopper.should_stop(stopper.tracker.value_of(metrics)):
            self.stop_reason = self.stop_reason or (
                f"early stopping: {stopper.tracker.monitor} has not improved for "
                f"{stopper.patience} validations"
            )
        return improved

    def _watch_validation(
        self, outputs: Iterator[EvalOutput], num_batches: int
    ) -> Iterator[EvalOutput]:
        for index in range(self.context.rank, num_batches, self.context.world_size):
            self.callbacks.call("on_validation_step_start", index)
            output = next(outputs, None)
            if output is None:
                return
            self.callbacks.call("on_validation_step_end", output)
            yield output
        yield from outputs

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Makes sharded weights readable. Collective: all ranks must enter it."""
        with self.optimization.readable(self.task.env.scratch), self.optimization.autocast():
            yield

    def state_dict(self) -> dict[str, Any]:
        """The state of a checkpoint, without random states.

        Sharded weights (`scaling.shard`) are complete on rank 0 and None on other ranks; each rank
        has its own share of sharded learned rows. The caller checks for failed callbacks.
        """
        stopper, module = self.early_stopper, self.optimization.module
        now = self.position if self.average is None else None
        return {
            **self.optimization.state_dict(),
            "position": self.position.state_dict(),
            "best": self.best.state_dict(now, module),
            "average": None if self.average is None else self.average.state_dict(),
            "early_stopper": None if stopper is None else stopper.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "windows": [self._log_window.state_dict(), self._validation_window.state_dict()],
            "history": list(self.history),
            "training_time_s": self.training_time_s,
            "stop_reason": self.stop_reason,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.callbacks.call("on_load_checkpoint", state)
        self.optimization.load_state_dict(state)
        self.position = Position(**state["position"])
        self.best.load_state_dict(state["best"], self.optimization.module)
        if self.average is not None and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        if self.early_stopper is not None and state["early_stopper"] is not None:
            self.early_stopper.load_state_dict(state["early_stopper"])
        self.callbacks.load_state_dict(state["callbacks"])
        for window, saved in zip(
            (self._log_window, self._validation_window), state["windows"], strict=True
        ):
            window.load_state_dict(saved)
        self.history = list(state["history"])
        self._spent_s = float(state["training_time_s"])
        self.stop_reason = self._still_stopped_by(state["stop_reason"])

    def _still_stopped_by(self, reason: str | None) -> str | None:
        """Why a resumed run has already ended. Its config may have raised a limit or patience."""
        stopper = self.early_stopper
        is_patient = stopper is not None and not stopper.is_out_of_patience
        reconsidered = ("training.", "early stopping") if is_patient else ("training.",)
        if reason is None or reason.startswith(reconsidered):
            return limit_reached(self.config.training, self.position, out_of_time=False)
        return reason

    def _interruption(self, totals: StepTotals) -> str | None:
        if totals.interrupted:
            return next(filter(None, collectives.gather_objects(self.context.interruption())))
        return self.context.host_interruption() if totals.ask_host else None

    def _describe_interruption(self) -> str:
        remedy = "Start the same run again to continue from there."
        if self._save is None:
            remedy = "It kept no checkpoint (checkpoint.policy: none), so it starts from scratch."
        position = f"step {self.position.step}, epoch {self.position.current_epoch}"
        return f"The run was stopped by {self.interrupted_by} after {position}. {remedy}"

    def _asks_host(self) -> bool:
        """Whether all ranks ask Ray for notices after this step, by the clock of rank 0."""
        now_s = time.monotonic()
        if self.context.rank != 0 or now_s - self._host_asked_s < _ASK_HOST_EVERY_S:
            return False
        self._host_asked_s = now_s
        return True

    def _moment(self) -> str:
        return f"epoch {self.position.current_epoch}, step {self.position.step}"

    @property
    def training_time_s(self) -> float:
        """Seconds of training over all starts of the run."""
        return self._spent_s + time.monotonic() - self._started_s

    @property
    def loader_wait_s(self) -> float:
        return self.accumulation.wait_s

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one pass over the training seeds."""
        return -(-self._train_loader.num_batches // self.config.batch.num_micro_batches)

    @cached_property
    def validate_every(self) -> Period:
        """`training.validate_every`. Default: as many epochs as it takes to make 20 steps, or an
        equal part of an epoch with at most `most_steps` of `Task.watched`.

        Early stopping would otherwise end runs with few steps per epoch before they learn.
        """
        if (configured := self.config.training.validate_every) is not None:
            return configured
        steps = self.steps_per_epoch
        if (num_parts := -(-steps // self.task.watched.most_steps)) > 1:
            return Period(steps=-(-steps // num_parts))
        return Period(epochs=-(-_STEPS_BETWEEN_VALIDATIONS // steps))

    @property
    def has_validation(self) -> bool:
        return self.task.loader("val") is not None

    @property
    def _train_loader(self) -> BatchSequence[Any]:
        loader = self.task.loader("train")
        if loader is None:
            raise TrainingError("The task has no training split. Declare one. [training-no-split]")
        return loader

    def _build_model(self) -> nn.Module:
        share = None
        if self.config.scaling.shard == "embeddings" and self.context.world_size > 1:
            share = RowShare(self.context.rank, self.context.world_size)
        with rows_shared(share):
            module = self.task.build_model()
        if self._initialize is not None:
            self._initialize(module)
        self.task.pads = can_record(self.task, self.config, module, self.context.device)
        for split in ("train", "val"):
            self.task.loader(split)
        loader = self.task.loader("train")
        if loader is not None and self.context.device.type == "cuda":
            reason = loader.sample_on_device()
            where = (
                "on the GPU" if reason is None else f"by threads of the host, because of {reason}"
            )
            if self.context.rank == 0:
                say(f"training batches are sampled {where}")
        return module

    def _component_callbacks(self) -> list[CallbackBase]:
        """Modules, optimizer, scheduler and tasks that are callbacks themselves."""
        modules = self.optimization.module.modules()
        schedule = [self.optimization.own_optimizer, self.optimization.scheduler]
        components = [*modules, *schedule, self.task, *self.task.parts.values()]
        return [component for component in components if isinstance(component, CallbackBase)]
