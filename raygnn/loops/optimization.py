"""From summed gradients to new weights: compilation, precision, clipping, schedules."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from raygnn.config import Component, LoadedConfig, build
from raygnn.errors import ConfigError, ResourceError, TrainingError
from raygnn.loops.batch_statistics import BatchStatistics
from raygnn.loops.precision import Precision, matmul_precision
from raygnn.models.segment import break_graphs
from raygnn.parallel import collectives, sharding
from raygnn.parallel.agreement import broadcast_initial_weights, run_and_sync_errors
from raygnn.parallel.all_reduce import gradient_values
from raygnn.parallel.sharded_tables import ShardedTables


def compile_module(module: nn.Module, device: torch.device) -> None:
    """Lets torch compile the forward pass at its first call. Weights keep their names.

    Raises a ResourceError if there is no compiler.
    """
    _check_compiler(device)
    break_graphs()
    # Each batch has other numbers of nodes and edges: shapes are symbols from the first one on.
    module.compile(dynamic=True)


def _check_compiler(device: torch.device) -> None:
    variable, names = ("CXX", ("g++",)) if device.type == "cpu" else ("CC", ("gcc", "clang"))
    chosen = os.environ.get(variable)
    wanted = (chosen.split()[0],) if chosen else names
    if not any(shutil.which(name) for name in wanted):
        raise ResourceError(
            f"training.compile=True is invalid: it needs {' or '.join(wanted)}. Install "
            f"{wanted[0]} on every node, or name a compiler in {variable}. [training-no-compiler]"
        )


def _fused(optimizer: Component, weights: Sequence[Tensor]) -> dict[str, bool]:
    is_chosen = not {"fused", "foreach", "capturable", "differentiable"}.isdisjoint(optimizer.args)
    fits = all(w.dtype == torch.float32 and w.device.type in ("cpu", "cuda") for w in weights)
    return {"fused": True} if optimizer.type in ("Adam", "AdamW") and fits and not is_chosen else {}


#: Gives an optimizer of the task's own for the module, or None.
Configure = Callable[[nn.Module], torch.optim.Optimizer | None]


class Optimization:
    """Model, optimizer, scheduler and scaler of one rank, and their order in a step.

    Collective: all ranks must make one.

    Attributes:
        module: the model. With `scaling.shard: full`, weights are complete only inside `gathered`.
        statistics: of batch norms, in the current step.
        tables: sharded learned rows, with `scaling.shard: embeddings`.
        optimizer: the stepped optimizer; with `scaling.shard: optimizer` it wraps `own_optimizer`.
    """

    def __init__(
        self,
        module: nn.Module,
        loaded: LoadedConfig,
        device: torch.device,
        configure: Configure = lambda module: None,
    ) -> None:
        config = loaded.config
        if chosen := matmul_precision(config, device):
            torch.set_float32_matmul_precision(chosen)
        self.module = module.to(device)
        self._precision = Precision(config.training.precision, device)
        self._precision.apply(self.module)
        if config.training.compile:
            run_and_sync_errors(lambda: compile_module(self.module, device), "compiling the model")
        if not any(p.requires_grad for p in self.module.parameters()):
            raise ConfigError(
                f"model.type={config.model.type!r} is invalid: it has no trainable parameter. Set "
                "a model that learns, or freeze fewer weights. [model-no-parameters]"
            )
        self.tables = ShardedTables(self.module)
        broadcast_initial_weights(self.module, but=self.tables.names)
        self.statistics = BatchStatistics(self.module)
        shard = config.scaling.shard if collectives.world_size() > 1 else "none"
        sharding.check_shardable(self.module, shard)
        if shard == "embeddings" and not self.tables:
            raise ConfigError(
                f"scaling.shard='embeddings' is invalid: model.type={config.model.type!r} has no "
                "learned rows of nodes. Set none, optimizer or full. [shard-no-rows]"
            )
        self._sharded = sharding.ShardedWeights(self.module, device) if shard == "full" else None
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        fused = _fused(config.optimizer, trainable)
        self.own_optimizer: torch.optim.Optimizer = configure(self.module) or build(
            config.optimizer, "optimizer", loaded.allow_modules, params=trainable, **fused
        )
        self._check_optimizer()
        self._shared = (
            sharding.ShardedOptimizer(self.own_optimizer) if shard == "optimizer" else None
        )
        self.optimizer = self._shared or self.own_optimizer
        self.schedule = config.lr_scheduler
        self.scheduler: LRScheduler = build(
            self.schedule, "lr_scheduler", loaded.allow_modules, optimizer=self.optimizer
        )
        self._clip = config.training.clip_grad_norm
        # torch begins at 2^16, for a loss that is a mean; here it is the sum over a micro-batch.
        self.scaler = torch.amp.GradScaler(
            device.type,
            enabled=self._precision.scales_loss,
            init_scale=2.0 ** (16 - math.ceil(math.log2(config.batch.batch_size))),
        )
        # It makes its state at the first loss; a rank may have none in the first step.
        self.scaler.scale(torch.zeros((), device=device))
        self._overflowed = False
        self._row_norms: dict[str, float] = {}
        self._buffers_differ = False

    def _check_optimizer(self) -> None:
        if not isinstance(self.own_optimizer, torch.optim.SparseAdam):
            return
        tables = [m for m in self.module.modules() if isinstance(m, nn.Embedding) and m.sparse]
        sparse = {id(table.weight) for table in tables}
        for name, weight in self.module.named_parameters():
            if weight.requires_grad and id(weight) not in sparse:
                raise ConfigError(
                    f"optimizer.type='SparseAdam' is invalid: the gradient of {name} is dense. Set "
                    "Adam, or with model.args.sparse_embeddings Adagrad or SGD. [optimizer-sparse]"
                )

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def learning_rates(self) -> dict[str, float]:
        """`lr`; with several parameter groups, `lr/<name or number>` of each."""
        groups = self.optimizer.param_groups
        several = {f"lr/{g.get('name', i)}": float(g["lr"]) for i, g in enumerate(groups)}
        return {"lr": self.lr, **(several if len(groups) > 1 else {})}

    def autocast(self) -> AbstractContextManager[Any]:
        return self._precision.autocast()

    def gathered(self) -> AbstractContextManager[None]:
        """Context in which every rank has the complete weights. Do not nest it.

        Collective: all ranks must enter it, around the work of a step or an evaluation.
        """
        return nullcontext() if self._sharded is None else self._sharded.gathered()

    @contextmanager
    def readable(self, scratch: Path) -> Iterator[None]:
        """Context of an evaluation: `gathered`, and every rank reads all learned rows.

        Collective: all ranks must enter it. `scratch`: folder on a local disk, for sharded rows.
        """
        with self.gathered(), self.tables.whole(scratch):
            yield

    def whole_weights(self, scratch: Path) -> dict[str, Any]:
        """The model's state; sharded weights complete on rank 0 and None on others. Collective.

        Sharded learned rows are files in `scratch`.
        """
        with self.tables.whole(scratch) as rows:
            state = self.module.state_dict()
            return sharding.whole_tensors(state) | {
                n: table.to(state[n].dtype) for n, table in rows.items()
            }

    def clear_gradients(self) -> None:
        """Like `zero_grad`, without the events that it sends to a profiler."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def grad_norm(self) -> Tensor:
        """Norm of the reduced gradients, unscaled, on their device. Collective, once per step."""
        self.scaler.unscale_(self.optimizer)
        gradients, self._row_norms = self._gradients()
        norm: Tensor = sharding.full(nn.utils.get_total_norm(list(gradients.values())))
        if not self._row_norms:
            return norm
        return torch.tensor(math.hypot(float(norm), *self._row_norms.values()))

    def clip(self, norm: float, step: int) -> float:
        """Clips the gradients if configured. Returns their norm before. Collective.

        Raises a TrainingError on all ranks if a gradient is not finite. With a scaled loss (fp16),
        `step` skips the update instead.

        Args:
            norm: result of `grad_norm`.
        """
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            norm = _finite_norm(self._gradients()[0], self._row_norms, step)
        self._overflowed = not math.isfinite(norm)
        if self._clip is not None and norm > self._clip:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._clip / norm)
        return norm

    def _gradients(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        gradients = {
            name: gradient_values(parameter)
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }
        of_rows = {name: gradients.pop(name) for name in self.tables.names if name in gradients}
        return gradients, _norms_over_ranks(of_rows)

    def step(self) -> None:
        """Updates the weights, unless scaled gradients overflowed: then it lowers the scale.

        Running statistics of batch norms move in any case.
        """
        self._buffers_differ = True  # each rank updates them with its own batches
        self.statistics.move()
        # The scaler would wait for the device, although the norm is known already.
        if not self._overflowed:
            self.optimizer.step()
        if self.scaler.is_enabled():
            self.scaler.update()

    def step_schedulers(self, *, step: int, epoch: int, epoch_ended: bool) -> None:
        """Steps a scheduler at the end of its interval. Plateau schedulers wait for a metric.

        Steps that changed no weights because gradients overflowed do not count.
        """
        if isinstance(self.scheduler, ReduceLROnPlateau):
            return
        by_step = self.schedule.interval == "step"
        if (by_step and not self._overflowed) or (epoch_ended and not by_step):
            count = step if by_step else epoch
            if count % self.schedule.frequency == 0:
                self._step_scheduler()

    def _step_scheduler(self) -> None:
        try:
            self.scheduler.step()
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if "." in self.schedule.type:
                raise  # a user's optimizer, perhaps; its traceback explains more
            raise ConfigError(
                f"lr_scheduler.args={self.schedule.args!r} is invalid: {self.schedule.type}: "
                f"{error}. Set them for the {self.schedule.interval}s of the run. "
                "[scheduler-arguments]"
            ) from error

    def step_plateau(self, metrics: dict[str, float], monitor: str) -> None:
        """Passes a validation's metric to a plateau scheduler.

        Raises a TrainingError if the metric is not logged.
        """
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            return
        name = self.schedule.monitor or monitor
        key, known, rule = "lr_scheduler.monitor", sorted(metrics), "this run does not log it"
        TrainingError.check_choice(key, name, known, rule, id="metric-not-logged")
        self.scheduler.step(metrics[name])

    def sync_buffers(self) -> None:
        """Averages the user's own buffers over ranks, so that all evaluate alike.

        `BatchStatistics` already keeps batch norms equal. Collective: all ranks must call. Until
        the next step, further calls change nothing, because the mean of equal numbers may differ in
        the last bit.
        """
        size = collectives.world_size()
        if size == 1 or not self._buffers_differ:
            return
        self._buffers_differ = False
        for buffer in self.module.buffers():
            if buffer.is_floating_point() and not self.statistics.owns(buffer):
                buffer.copy_(collectives.all_reduce_sum(buffer.detach().clone()) / size)

    def state_dict(self) -> dict[str, Any]:
        """The complete state on rank 0, for any `scaling.shard`, after averaging buffers.

        Each rank has its own share of sharded learned rows and of their optimizer state.
        Collective: all ranks must call.
        """
        self.sync_buffers()
        return {
            "model": sharding.whole_tensors(self.module.state_dict()),
            "optimizer": sharding.whole_state(self.optimizer)
            if self._shared is None
            else self._shared.whole_state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the `state_dict` of rank 0, also with another `scaling.shard`."""
        weights = self.module.state_dict()
        self.module.load_state_dict(
            {n: sharding.part_of(t, weights[n]) for n, t in state["model"].items()}
        )
        sharding.load_whole_state(self.optimizer, state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self._buffers_differ = False


def _norms_over_ranks(parts: dict[str, Tensor]) -> dict[str, float]:
    """Norms of gradients that are sharded over ranks. Collective: all ranks must call."""
    if not parts:
        return {}
    names = sorted(parts)
    local = torch.stack([parts[name].double().square().sum().cpu() for name in names])
    sums = collectives.all_reduce_sum(local).tolist()
    return {name: math.sqrt(total) for name, total in zip(names, sums, strict=True)}


def _finite_norm(gradients: dict[str, Tensor], known: dict[str, float], step: int) -> float:
    """Norm of gradients whose squares overflow float32, including the `known` norms. Collective."""
    norms = {
        name: float(sharding.full(torch.linalg.vector_norm(values, dtype=torch.float64)))
        for name, values in gradients.items()
    }
    norms |= known
    broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
    if broken:
        others = f" and of {len(broken) - 1} more" if len(broken) > 1 else ""
        raise TrainingError(
            f"The gradient of {broken[0]}{others} is not finite at step {step}, though the loss "
            "is. Look for a square root, logarithm or division at 0. [training-gradient-not-finite]"
        )
    return math.hypot(*norms.values())
