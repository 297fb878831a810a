"""Several tasks that train one encoder together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.config import build
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines, BaselinesOfParts
from raygnn.loops.model_spec import Output
from raygnn.loops.process import seed_micro_batch
from raygnn.loops.task import EvalOutput, StepOutput, TaskEnvironment
from raygnn.loops.tasks.encoder_task import EncoderTask
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.several_tasks.target import SeveralOutput, SeveralTarget, naming_task
from raygnn.losses import Candidates
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch_sequence import JointBatch, JointBatches

_HEADS = "heads"


class SeveralModel(nn.Module):
    """An encoder, and the model of each task around it.

    The encoder is registered only here, while tasks' models refer to it, so each weight has one
    name. Every forward pass goes through the encoder, which therefore compiles and casts batches.

    Args:
        models: by task, with the encoder as attribute `encoder`.
    """

    def __init__(self, encoder: GraphEncoder, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for model in models.values():
            del model.encoder
            object.__setattr__(model, "encoder", encoder)  # not registered as a module
        self.encoder = encoder
        self.heads = ModuleDict(dict(models))

    def forward(self, batch: Any) -> dict[str, Tensor]:
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self.encoder.compile(*args, **kwargs)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Registers the hook on the encoder, which every batch passes."""
        return self.encoder.register_forward_pre_hook(*args, **kwargs)


def weights_of_task(weights: Mapping[str, Tensor], task: str) -> dict[str, Tensor]:
    head_prefix = f"{_HEADS}.{ModuleDict.to_internal_key(task)}."
    return {
        name.removeprefix(head_prefix): tensor
        for name, tensor in weights.items()
        if name.startswith((head_prefix, "encoder."))
    }


_NEXT = "\n# next task\n"


def trees_of_task(text: str, outputs: Mapping[str, Output], task: str) -> str:
    """LightGBM's text of a task whose blend contains it, from that of all tasks."""
    names = [
        name
        for name, output in sorted(outputs.items())
        if isinstance(output, LabelOutput) and output.has_trees
    ]
    return text.split(_NEXT)[names.index(task)]


_LEAST_BATCH_SIZE = 32  # for tasks with few seeds: the mean of fewer is mostly noise


@dataclass(frozen=True)
class PartMetric:
    part: str
    metric: Any

    @property
    def name(self) -> str:
        return f"{self.part}/{self.metric.name}"

    def describe(self) -> Any:
        return self.metric.describe()


class SeveralTasks(EncoderTask[Any]):
    """Trains the tasks under `tasks`, which share the encoder and have separate heads.

    Each step draws a batch of every task, and its loss is the weighted sum of the tasks' mean
    losses. An epoch is one pass over the seeds of each. Links and edges held out by any task carry
    no messages in the batches of all tasks.
    """

    target_class = SeveralTarget
    parts: dict[str, EncoderTask[Any]]

    def setup(self, env: TaskEnvironment) -> None:
        super().setup(env)
        config, outputs = self.config, self.spec.output
        assert isinstance(outputs, SeveralOutput)
        self.weights = {name: entry.weight for name, entry in config.tasks.items()}
        self.parts = {}
        for name, of_task in config.task_configs.items():
            with naming_task(config, name):
                part: Any = build(of_task.task, "task", env.loaded.allow_modules)
                loaded = replace(env.loaded, config=of_task)
                spec = replace(self.spec, output=outputs.tasks[name])
                part.setup(replace(env, loaded=loaded, spec=spec))
            self.parts[name] = part
        for part in self.parts.values():
            part.share_encoder([*self.parts.values()])
        self.trained = {name: part for name, part in self.parts.items() if self.weights[name]}
        units = {name: part.loss_unit for name, part in self.parts.items()}
        self.loss_unit = (
            "; ".join(f"{name}: {unit}" for name, unit in units.items() if unit) or None
        )

    def build_model(self) -> nn.Module:
        """The encoder, with the head of each task as a run of that task alone would draw it."""
        encoder = self.build_encoder()
        state, models = torch.get_rng_state(), {}
        for name, part in self.parts.items():
            torch.set_rng_state(state)
            with naming_task(self.config, name):
                models[name] = part.build_head(encoder)
        self._find_joint_loss()
        self.step_metrics = [
            f"{name}/{metric}"
            for name, part in self.trained.items()
            for metric in ("loss", *part.step_metrics)
        ]
        return SeveralModel(encoder, models)

    def _find_joint_loss(self) -> None:
        joint = [name for name, part in self.trained.items() if part.joint_loss is not None]
        if len(joint) > 1:
            raise ConfigError(
                f"tasks is invalid: {' and '.join(joint)} compare all micro-batches of a step; one "
                "task may. Set candidates: rank, another method, or a weight to 0. "
                "[tasks-joint-losses]"
            )
        self._joint = next(iter(joint), None)
        self.joint_loss = self if joint else None

    @property
    def model(self) -> nn.Module:
        """The trained module. Setting it gives each task its part."""
        return self._model

    @model.setter
    def model(self, module: nn.Module) -> None:
        assert isinstance(module, SeveralModel)
        self._model = module
        for name, part in self.parts.items():
            part.model = module.heads[name]

    def build_loader(self, split: str) -> JointBatches | None:
        """A batch of each trained task; in evaluation, of each with the split.

        Batches of `loader.batch_size` set the number per epoch. Tasks with fewer seeds have smaller
        batches, so that an epoch passes once over the seeds of each.
        """
        parts = self.trained if split == "train" else self.parts
        present = {}
        for name, part in parts.items():
            with naming_task(self.config, name):
                loader = part.loader(split)
            if loader is not None:
                present[name] = loader
        if not present:
            return None
        config = self.config
        if split == "train" and len(present) > 1:
            longest = max(loader.num_batches for loader in present.values())
            for name, loader in present.items():
                if config.tasks[name].loader.batch_size is None:
                    loader.cut_into(longest, _LEAST_BATCH_SIZE)
        plan = config.loader_plan(split)
        return JointBatches(
            present,
            num_threads=plan.num_threads,
            prefetch_batches=plan.prefetch_batches,
            device=self.env.device,
        )

    def num_samples(self, batch: JointBatch) -> int:
        return sum(self.parts[name].num_samples(each) for name, each in batch.batches.items())

    def training_step(self, batch: JointBatch) -> StepOutput:
        return self._sum({name: self._step(name, batch) for name in batch.batches})

    def encode(self, batch: JointBatch) -> dict[str, Tensor]:
        name = self._seeded(self._joint, batch)
        return self._loss_of(name).encode(batch.batches[name])

    def offer(self, batch: JointBatch, rows: dict[str, Tensor]) -> Candidates:
        assert self._joint is not None
        return self._loss_of(self._joint).offer(batch.batches[self._joint], rows)

    def loss_among(
        self, batch: JointBatch, rows: dict[str, Tensor], offered: Candidates
    ) -> StepOutput:
        joint = self._joint
        assert joint is not None
        outputs = {joint: self._loss_of(joint).loss_among(batch.batches[joint], rows, offered)}
        others = [name for name in batch.batches if name != joint]
        outputs |= {name: self._step(name, batch) for name in others}
        return self._sum({name: outputs[name] for name in batch.batches})

    def _loss_of(self, name: str) -> Any:
        return self.parts[name].joint_loss

    def _step(self, name: str, batch: JointBatch) -> StepOutput:
        return self.parts[self._seeded(name, batch)].training_step(batch.batches[name])

    def _seeded(self, name: str | None, batch: JointBatch) -> str:
        assert name is not None
        seed, index = self.config.seed, batch.batches[name].index
        seed_micro_batch(seed, batch.epochs[name], index)
        return name

    def _sum(self, outputs: Mapping[str, StepOutput]) -> StepOutput:
        if len(outputs) == 1:
            ((name, only),) = outputs.items()
            weight, total = only.weight, self.weights[name] * only.loss_sum
        else:
            means = {name: each.loss_sum / (each.weight or 1.0) for name, each in outputs.items()}
            weighted = [self.weights[name] * mean for name, mean in means.items()]
            weight, total = 1.0, sum(weighted[1:], weighted[0])
        metrics: dict[str, Tensor | float] = {}
        for name, each in outputs.items():
            values = {"loss": each.loss_sum.detach(), **each.metrics}
            factor = weight / (each.weight or 1.0)
            for metric, value in values.items():
                precise = value.double() if isinstance(value, Tensor) else value
                metrics[f"{name}/{metric}"] = factor * precise
        return StepOutput(total, weight, metrics)

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        raise NotImplementedError("SeveralTasks.evaluate")

    def build_metrics(self) -> list[PartMetric]:
        metrics = []
        for name, part in self.parts.items():
            with naming_task(self.config, name):
                metrics += [PartMetric(name, metric) for metric in part.build_metrics()]
        return metrics

    def diagnostics(self) -> list[Any]:
        return [
            PartMetric(name, each)
            for name, part in self.parts.items()
            for each in part.diagnostics()
        ]

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | BaselinesOfParts | None:
        by_part = {}
        for name, part in self.parts.items():
            part_metrics = [each.metric for each in metrics if each.part == name]
            of_part = part.baselines(split, num_batches, part_metrics)
            if of_part is not None:
                by_part[name] = of_part
        return BaselinesOfParts(by_part) if by_part else None

    def conclude(self) -> bool:
        """Chooses the blend of each task with labels."""
        is_changed = [part.conclude() for part in self.parts.values()]
        self._take_outputs()
        return any(is_changed)

    def refit(self) -> None:
        for part in self.parts.values():
            part.refit()
        self._take_outputs()

    def _take_outputs(self) -> None:
        outputs = {name: part.spec.output for name, part in self.parts.items()}
        self.spec = replace(self.spec, output=SeveralOutput(outputs))

    @property
    def trees_text(self) -> str | None:
        texts = [part.trees_text for _, part in sorted(self.parts.items())]
        return _NEXT.join(filter(None, texts)) or None

    def left_out(self) -> list[str]:
        return [f"{name}: {text}" for name, part in self.parts.items() for text in part.left_out()]

    def warnings(self) -> list[str]:
        return [f"{name}: {text}" for name, part in self.parts.items() for text in part.warnings()]

    def close(self) -> None:
        super().close()
        for part in self.parts.values():
            part.close()
