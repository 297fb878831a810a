"""Forward and backward passes as CUDA graphs, which start all kernels of a pass together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raygnn.config import Config
from raygnn.console import say
from raygnn.loops.task import Task
from raygnn.models.encoder import BlockEncoder
from raygnn.parallel import collectives
from raygnn.sampling.batch import Batch
from raygnn.sampling.tensor_record import moved

Result = TypeVar("Result")

#: Graphs to keep. Each has its own batch, gradients and result; they share all other memory.
_MOST_GRAPHS = 16


def can_record(task: Task[Any], config: Config, module: nn.Module, device: torch.device) -> bool:
    """Whether passes of training are recorded. If a setting prevents it, rank 0 prints which."""
    training = config.training
    is_chosen = training.cuda_graphs and not training.compile and task.learns
    if not is_chosen or device.type != "cuda" or torch.version.cuda is None:
        return False
    settings = obstacles(config, module)
    if not task.can_pad:
        settings.append(f"task={config.task.type!r} with these task.args and losses")
    if settings and collectives.rank() == 0:
        say(f"training.cuda_graphs: steps are not recorded, because of {', '.join(settings)}")
    return not settings


def obstacles(config: Config, module: nn.Module) -> list[str]:
    """Settings with which sizes do not follow from a batch's shapes, added rows change other rows,
    or a step waits for the device.
    """
    training, modules = config.training, list(module.modules())
    encoders = [m for m in modules if isinstance(m, BlockEncoder)]
    is_known = len(encoders) == 1 and type(encoders[0]).__module__.startswith("raygnn.")
    own_modules = {type(m).__qualname__ for m in modules if not _is_known(m)}
    own_losses = [term.type for term in config.losses if "." in term.type]
    settings = {
        f"sampling.type={config.sampling.type!r}": config.sampling.is_full,
        f"training.precision={training.precision!r}": training.precision == "fp16-mixed",
        f"training.grad_reduction={training.combined_by!r}": "." in training.combined_by,
        f"losses.type={', '.join(own_losses)!r}": bool(own_losses),
        "losses.args.class_weights": any("class_weights" in t.args for t in config.losses),
        f"model.type={config.model.type!r}": not is_known,
        f"modules {', '.join(sorted(own_modules))}": is_known and bool(own_modules),
        "batch normalization": any(isinstance(m, _BatchNorm) for m in modules),
        "sparse embeddings": any(getattr(m, "sparse", False) for m in modules),
    }
    return [name for name, prevents in settings.items() if prevents]


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("raygnn.", "torch.", "torch_geometric."))


@dataclass(frozen=True)
class _Recorded(Generic[Result]):
    """A recorded pass, which reads a batch from `memory`."""

    graph: torch.cuda.CUDAGraph
    memory: Tensor
    gradients: list[tuple[nn.Parameter, Tensor]]
    result: Result

    def add_gradients(self, *, copies: bool) -> None:
        """Adds the gradients of a replay to those of the parameters. The next replay overwrites
        the first ones unless they are copies.
        """
        for parameter, gradient in self.gradients:
            if parameter.grad is None:
                parameter.grad = gradient.clone() if copies else gradient
            else:
                parameter.grad += gradient


class StepGraphs(Generic[Result]):
    """Records the pass over a batch as a CUDA graph, and repeats it for batches of the same layout.

    The first batch of a layout is computed as usual, the second is recorded. The numbers are the
    same: random generators are read when a graph starts. `compute` may not read from the device.

    Args:
        accumulates: a step adds up the gradients of several passes.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        compute: Callable[[Batch], Result],
        *,
        accumulates: bool = False,
    ) -> None:
        self._module, self._compute, self._accumulates = module, compute, accumulates
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded[Result]] = {}

    def __call__(self, batch: Batch) -> Result:
        """The result of a padded batch, which `DeviceCopies` copied; adds its gradients. The next
        call may overwrite the result.
        """
        assert batch.copy is not None
        layout = batch.copy.layout
        if layout not in self._recorded:
            if layout not in self._seen:
                if len(self._seen) < _MOST_GRAPHS:
                    self._seen.add(layout)
                return self._compute_aside(batch)
            self._recorded[layout] = self._record(batch)
        recorded = self._recorded[layout]
        recorded.memory.copy_(batch.copy.memory)
        recorded.graph.replay()
        recorded.add_gradients(copies=self._accumulates)
        return recorded.result

    def _compute_aside(self, batch: Batch) -> Result:
        """Computes on the stream of the recordings, where no other stream joins them later."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._compute(batch)
        current.wait_stream(self._stream)
        return result

    def _record(self, batch: Batch) -> _Recorded[Result]:
        assert batch.copy is not None
        memory = batch.copy.memory.clone()
        parameters = list(self._module.parameters())
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        try:
            # Sampler threads may allocate meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                result = self._compute(batch.apply(partial(moved, memory=memory)))
        except RuntimeError as error:
            error.add_note(
                "while recording a training step as a CUDA graph; training.cuda_graphs: false "
                "computes without"
            )
            raise
        both = [(parameter, parameter.grad) for parameter in parameters]
        gradients = [(parameter, grad) for parameter, grad in both if grad is not None]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return _Recorded(graph, memory, gradients, result)
