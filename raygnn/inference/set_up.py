"""A saved model set up on a graph: its task, its module, and options of its loaders."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from raygnn.config import build
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition, ExtendedBundle
from raygnn.data.filesystem import redact
from raygnn.data.partition.part import Outline
from raygnn.errors import CheckpointError, ConfigError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.loops.tasks.build_encoder import find_shared_leaves
from raygnn.loops.tasks.several_tasks.task import weights_of_task
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import reads_src_degree
from raygnn.outputs.model_export import read_weights
from raygnn.outputs.saved_model import SavedModel
from raygnn.parallel import collectives
from raygnn.sampling.parts import PartitionedGraph, map_parts


@dataclass(frozen=True)
class AppliedModel:
    """A trained model, and its task on a graph.

    Attributes:
        task: its environment has the part of the graph that the model reads.
        model: encoder with head or decoder.
    """

    task: Task
    model: nn.Module

    @property
    def env(self) -> TaskEnvironment:
        return self.task.env

    @property
    def bundle(self) -> Bundle:
        return self.task.env.bundle

    @property
    def spec(self) -> ModelSpec:
        assert self.task.spec is not None
        return self.task.spec

    @property
    def encoder(self) -> GraphEncoder:
        assert isinstance(self.model.encoder, GraphEncoder)
        return self.model.encoder

    def extended(self, addition: Addition) -> AppliedModel:
        """The model on the graph with new nodes and edges."""
        task = copy(self.task)
        task.env = replace(task.env, bundle=ExtendedBundle(self.bundle, addition))
        return AppliedModel(task, self.model)


def set_up_task(
    saved: SavedModel,
    bundle: Bundle,
    device: torch.device,
    parts: PartitionedGraph | None = None,
) -> Task:
    """The task that a model was trained with, on a graph that fits the model, or `schema_bundle`.

    `parts`: of a partitioned graph, whose outline is the bundle; None maps them here.
    """
    loaded, spec = saved.loaded, saved.spec
    if parts is None and isinstance(bundle, Outline):
        parts = map_parts(loaded.config.data.uri or "", bundle)
    rank, world_size = collectives.rank(), collectives.world_size()
    env = TaskEnvironment(loaded, bundle, rank, world_size, device, spec, parts)
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(env)
    return task


def load_module(saved: SavedModel, task: Task) -> nn.Module:
    """The trained model, in float32 and evaluation mode, on the task's device. Raises a
    CheckpointError if the weights are damaged, or do not fit the config's model, a ConfigError if
    the model has no encoder.
    """
    model = task.build_model()
    try:
        weights = read_weights(saved.weights_uri)
        model.load_state_dict(
            weights if saved.task is None else weights_of_task(weights, saved.task)
        )
    except (RuntimeError, SafetensorError) as error:  # torch raises the former
        raise CheckpointError(
            f"{redact(saved.weights_uri)} does not fit the config beside it: {error}. Copy the "
            f"three files of one run: model.safetensors, model.json and config.yaml.",
            id="model-weights-mismatch",
        ) from error
    if not isinstance(getattr(model, "encoder", None), GraphEncoder):
        raise ConfigError(
            f"task.type={task.env.loaded.config.task.type!r} is invalid: its model has no "
            "`encoder` of class GraphEncoder, so there are no embeddings. Build it as "
            "NodeClassification does.",
            id="infer-no-encoder",
        )
    return model.float().eval().to(task.env.device)


def loader_options(applied: AppliedModel) -> dict[str, Any]:
    """Loader options of inference: examples once, in order."""
    env, config = applied.env, applied.env.loaded.config
    plan = config.loader_plan("test")
    return {
        "batch_size": plan.batch_size,
        "split": "infer",
        "seed": config.seed,
        "shuffle": False,
        "num_threads": plan.num_threads,
        "prefetch_batches": plan.prefetch_batches,
        "device": env.device,
        "src_degrees": reads_src_degree(config, env.loaded.allow_modules),
        "shared_leaves": find_shared_leaves(config, applied.spec),
    }
