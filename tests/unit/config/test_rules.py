"""Every rule of the config: its message names the place, the rule and the remedy."""

from __future__ import annotations

import pytest

from raygnn.config import ConfigError, load_config
from tests.errors import error_cases, raises

_CASES = error_cases(
    """
training: {max_epoch: 3}
    config-unknown-key | training.max_epoch=3 | Did you mean max_epochs?
model: gcn
    component-unknown | model.type='gcn' | Did you mean GCN?
modle: GCN
    config-unknown-key | modle='GCN' | Did you mean model?
seed: x
    config-type | seed='x' | a whole number
optimizer: {args: 3}
    config-type | optimizer.args=3 | a mapping
training: []
    config-type | training=[] | a mapping
seed: true
    config-type | seed=True | a whole number
seed: 1.5
    config-type | seed=1.5 | a whole number
deterministic: 'yes'
    config-type | deterministic='yes' | true or false
run: {storage_path: 3}
    config-type | run.storage_path=3 | a text
run: {storage_path: ''}
    config-type
seed: null
    config-type | seed=None | a whole number
seed: -1
    config-range | seed=-1 | at least 0
training: {clip_grad_norm: .nan}
    config-range
training: {validate_every: {epochs: 0}}
    config-range | training.validate_every.epochs=0 | greater than 0
training: {log_every: {}}
    config-period | training.log_every={}
training: {precision: bf16}
    config-choice | precision='bf16' | Did you mean bf16-
training: {precision: {param: fp16}}
    config-choice | precision.param='fp16' | fp32, bf16
training: {precision: {weights: bf16}}
    config-unknown-key | precision.weights='bf16'
scaling: {use_gpu: maybe}
    config-choice
scaling: {resources_per_worker: {disk: -1}}
    config-range | disk=-1 | at least 0
scaling: {shard: weights}
    config-choice | shard='weights'
data: {mode: partitioned}
    partition-uri | data.uri | raygnn.partition
data: {mode: partitioned, uri: parts, undirected: true}
    partition-written | data.undirected=True
{data: {mode: partitioned, uri: parts}, task: self_supervised}
    partition-task | task.type='self_supervised'
{data: {mode: partitioned, uri: parts}, sampling: {type: full}}
    partition-sampler | sampling.type='full'
{data: {mode: partitioned, uri: parts}, tune: {space: {seed: {choice: [1, 2]}}}}
    partition-sweep | data.mode='partitioned'
data: {mode: presampled, uri: graph}
    samples-mode | data.samples
data: {uri: graph, samples: samples}
    samples-mode | data.samples='samples' | in_memory
{data: {mode: presampled, uri: graph, samples: s}, task: self_supervised}
    samples-task | task.type='self_supervised'
{data: {mode: presampled, uri: graph, samples: s}, sampling: {type: full}}
    samples-sampler | sampling.type='full'
{data: {mode: presampled, uri: graph, samples: s}, tune: {space: {seed: {choice: [1, 2]}}}}
    samples-sweep | data.mode='presampled'
{scaling: {shard: optimizer}, optimizer: Adagrad, model: {type: LightGCN,
args: {sparse_embeddings: true}}}
    shard-sparse-gradients | scaling.shard='optimizer'
{scaling: {shard: full}, optimizer: {type: torch.optim.Adafactor}}
    shard-optimizer | scaling.shard='full' | Adafactor
{scaling: {shard: embeddings}, optimizer: {type: Adafactor}}
    shard-rows-optimizer | optimizer.type='Adafactor'
{scaling: {shard: embeddings}, training: {precision: fp16-mixed}}
    shard-rows-precision | training.precision='fp16-mixed' | bf16-mixed
{scaling: {shard: embeddings}, training: {compile: true}}
    shard-rows-compile | training.compile=True
{scaling: {shard: embeddings}, task: self_supervised}
    shard-rows-task | task.type='self_supervised'
scaling: {gradients: ddp}
    config-key-removed | scaling.gradients='ddp'
scaling: {max_failures: -2}
    config-range | max_failures=-2 | at least -1
scaling: {placement_strategy: pack}
    config-choice | PACK, SPREAD
training: {max_epochs: null}
    training-endless | training.max_epochs=None | max_epochs, max_steps
data: {uri: x, synthetic: {type: rmat}}
    data-source-twice | data.synthetic= | uri
data: {uri: x, type: a.B}
    data-source-twice | data.type='a.B' | uri
data: {args: {x: 1}}
    data-arguments-alone | data.args=
data: {synthetic: {type: rmatt}}
    config-choice | Did you mean rmat?
data: {synthetic: {num_nodes: 3}}
    config-required | data.synthetic.type
data: {splits: {type: hsh}}
    config-choice | data.splits.type='hsh' | Did you mean hash?
data: {splits: {fractions: [1, 0, 0]}}
    config-required | data.splits.type | hash, per_class, temporal
data: {splits: {type: per_class, trian: 3}}
    config-unknown-key | data.splits.trian=3 | Did you mean train?
data: {splits: {type: hash, fractions: [0.8, 0.1, 0.2]}}
    split-fractions | data.splits.fractions= | 1.1
data: {splits: {type: hash, fractions: [0, 0.5, 0.5]}}
    split-no-training
data: {splits: {type: temporal, timestamps: [1, 2], per: anchor}}
    split-per-anchor
data: {splits: {type: temporal, per: anchor}}
    split-per-anchor | data.splits.per
data: {splits: {type: hash, fractions: [0.5, 0.5]}}
    config-length | 3
data: {splits: {type: hash, fractions: [0.4, 0.2, 0.2, 0.2]}}
    config-length | 3 | 4
data: {splits: {type: hash, fractions: [1.1, 0, 0]}}
    config-range | fractions.0=1.1 | at most 1
data: {splits: {type: temporal, quantiles: [0.1, 0.2], timestamps: [1, 2]}}
    split-bounds-source
data: {splits: {type: temporal, quantiles: [0.9, 0.8]}}
    split-bounds-order | data.splits.quantiles=[0.9, 0.8]
data: {splits: {type: temporal, timestamps: [2024-02-01, 2024-01-01]}}
    split-bounds-order
data: {splits: {type: temporal, timestamps: [2024-02-01, 5]}}
    split-bounds-kinds
data: {splits: {type: temporal, timestamps: [soon, 2024-01-01]}}
    split-timestamp | timestamps.0='soon'
sampling: {fanouts: [5, 0]}
    sampling-fanout | fanouts.1=0
sampling: {fanouts: []}
    config-length | sampling.fanouts=[] | 1
sampling: {fanouts: 5}
    config-type | sampling.fanouts=5 | a list
sampling: {fanouts: {follows: [5]}}
    graph-edge-type-name | sampling.fanouts.follows=
sampling: {fanouts: {a__b__c: [0, -2]}}
    sampling-fanout | fanouts | -2
sampling: {fanouts: {a__b__c: [5], c__b__a: [5, 5]}}
    sampling-hops | 1, 2
sampling: {weight: w, temporal: {strategy: last}}
    sampling-last-draws-nothing | sampling.weight='w'
sampling: {ppr: {}, temporal: {}}
    sampling-ppr-temporal | sampling.temporal={}
{sampling: {ppr: {}}, data: {uri: parts, mode: partitioned}}
    partition-ppr | sampling.ppr={}
sampling: {weight: w, type: labor}
    sampling-labor-weight | sampling.weight='w'
sampling: {type: labor, temporal: {strategy: last}}
    sampling-last-draws-nothing | sampling.type='labor'
{sampling: {type: labor, fanouts: [5, 5]}, model: {args: {num_layers: 3}}}
    model-layers-hops | model.args.num_layers=3
sampling: {weight: w, type: full}
    sampling-full-draws-nothing | sampling.weight='w'
sampling: {temporal: {}, type: full}
    sampling-full-draws-nothing | sampling.temporal={}
sampling: {disjoint: true, type: full}
    sampling-full-draws-nothing | sampling.disjoint=True
{sampling: {type: full}, training: {global_batch_size: 64}}
    sampling-full-batches | training.global_batch_size=64
{sampling: {type: full}, training: {accumulate_grad_batches: 2}}
    sampling-full-batches | training.accumulate_grad_batches=2
{sampling: {type: full}, training: {num_val_batches: 2}}
    sampling-full-batches | training.num_val_batches=2 | one batch
{sampling: {type: full}, training: {num_test_batches: 3}}
    sampling-full-batches | training.num_test_batches=3
sampling: {args: {x: 1}}
    config-key-removed | sampling.args=
loader: {eval_batch_size: 0}
    config-range | eval_batch_size=0 | greater than 0
loader: {train: {batch_size: 5}}
    config-unknown-key | loader.train.batch_size=5
model: {type: GCN, args: {num_layers: 3}}
    model-layers-hops | model.args.num_layers=3 | 2 | 15, 10
early_stopping: {monitor: test/loss}
    monitor-test-split | monitor='test/loss' | loss
early_stopping: {monitor: loss}
    monitor-name | loss
early_stopping: {monitor: val/}
    monitor-name
checkpoint: {monitor: test/auroc, mode: max}
    monitor-test-split | checkpoint.monitor='test/auroc' | auroc
early_stopping: {monitor: val/accuracy}
    monitor-mode | early_stopping.mode | val/accuracy
early_stopping: {mode: up}
    config-choice | early_stopping.mode='up' | min, max
early_stopping: {patience: 0}
    config-range | patience=0 | greater than 0
checkpoint: {monitor: val/accuracy}
    monitor-mode | checkpoint.mode | val/accuracy
checkpoint: {mode: max}
    monitor-mode-alone | checkpoint.mode='max'
checkpoint: {resume: allways}
    resume-word | auto
{lr_scheduler: ReduceLROnPlateau, early_stopping: null}
    scheduler-monitor-missing | lr_scheduler.monitor
{metrics: [auroc], lr_scheduler: ReduceLROnPlateau, early_stopping: {monitor: val/auroc, mode: max}}
    scheduler-mode | lr_scheduler.args.mode | val/auroc | more | max
lr_scheduler: {type: ReduceLROnPlateau, frequency: 2}
    scheduler-frequency | lr_scheduler.frequency=2
lr_scheduler: {type: StepLR, args: {step_size: 1}, monitor: val/loss}
    scheduler-monitor-unread | lr_scheduler.monitor='val/loss' | StepLR
run: {name: a/b}
    run-name | run.name='a/b'
model: GNC
    component-unknown | model
metrics: [acuracy]
    component-unknown | metrics.0 | Did you mean accuracy?
losses: [{type: crossentropy}]
    component-unknown | Did you mean cross_entropy?
losses: [{type: mse, weight: -1}]
    config-range | losses.0.weight=-1 | at least 0
optimizer: Adm
    component-unknown | Did you mean Adam?
loggers: [tensorbord]
    component-unknown | Did you mean tensorboard?
model: {type: GCN, args: {in_channels: 5}}
    component-argument-set | model.args.in_channels=5
optimizer: {type: SGD, args: {params: []}}
    component-argument-set | optimizer.args.params=
lr_scheduler: {type: StepLR, args: {optimizer: 1}}
    component-argument-set | lr_scheduler.args.optimizer=1
data: {type: Planetoid}
    component-unknown | data.type='Planetoid'
model: my_pkg.Net
    component-not-allowed | my_pkg.Net | torch | Add --allow-module my_pkg
model: {type: GCN, args: {activation: {__type: os.system, command: ls}}}
    component-not-allowed | model.args.activation.__type='os.system'
model: {type: GCN, args: {a: [1, {b: {__type: os.x}}]}}
    component-not-allowed | model.args.a.1.b.__type='os.x'
model: {type: GCN, args: {a: {__type: 3}}}
    component-path | __type=3
model: {type: GCN, args: {a: {__value_type: eval, value: x}}}
    component-value-type | a.__value_type='eval'
model: {type: GCN, args: {a: {__value_type: int, value: x}}}
    component-value | a.value='x' | int
model: {type: GCN, args: {a: {__value_type: bool, value: maybe}}}
    component-value | a.value='maybe' | bool
model: {type: GCN, args: {a: {__value_type: 'null', value: 3}}}
    component-value | a.value=3 | null
model: {type: GCN, args: {a: {__value_type: int}}}
    component-value-type
callbacks: [{on_train_start: torch.hub.load}]
    component-function | callbacks.0.on_train_start='torch.hub.load'
callbacks: [{}]
    config-length | callbacks.0={} | 1
callbacks: [mine]
    component-unknown | callbacks.0
init_env: os.system
    component-not-allowed | init_env='os.system'
init_env: torch.seed
    component-function | init_env=
model: {type: GCN, arg: {}}
    config-unknown-key | model.arg={} | Did you mean args?
task: null
    config-type | task=None | Set one of: edge_prediction, link_prediction | several_tasks
metrics: [null]
    config-type | metrics.0=None | accuracy | mrr
metrics: accuracy
    config-type | metrics='accuracy' | a list
metrics: [{args: {}}]
    config-required | metrics.0.type
loader: {batch_size: 0}
training: {global_batch_size: 15}
    config-range | loader.batch_size=0
seed: 1
seed: 2
    document-key-twice | line 2 | seed=2
seed: ${env:RAYGNN_NO_SUCH}
    config-environment-missing | RAYGNN_NO_SUCH
"""
)


@pytest.mark.parametrize(("text", "message"), _CASES)
def test_rule(text: str, message: tuple[str, ...]) -> None:
    with raises(*message) as caught:
        load_config(text)
    assert len(caught.value.problems) == 1, caught.value.problems
    assert caught.value.exit_status == 2
    assert caught.value.problems[0].startswith("line ")


@pytest.mark.parametrize(
    "text",
    [
        "training: {max_epochs: null, max_steps: 5}",
        "training: {validate_every: {steps: 5, epochs: 1}}",
        "early_stopping: null",
        "early_stopping: {monitor: train/loss}",
        "early_stopping: {monitor: val/accuracy, mode: max}",
        "checkpoint: {monitor: val/accuracy, mode: max, every: {steps: 5}}",
        "checkpoint: {resume: gs://bucket/run/checkpoint}",
        "lr_scheduler: {interval: epoch}",
        "lr_scheduler: {type: ReduceLROnPlateau, args: {patience: 2}}",
        "lr_scheduler: {type: ReduceLROnPlateau, monitor: val/loss}\nearly_stopping: null",
        "{lr_scheduler: {type: ReduceLROnPlateau, args: {mode: max}}, "
        "early_stopping: {monitor: val/auroc, mode: max}}",
        "data: {synthetic: {type: planted_partition, num_nodes: 100}}",
        "data: {splits: {type: hash, fractions: [0.7, 0.2, 0.1], seed: 3}}",
        "data: {splits: {type: per_class}}",
        "data: {splits: {type: temporal}}",
        "data: {splits: {type: temporal, quantiles: [0.8, 0.9]}}",
        "data: {splits: {type: temporal, timestamps: [2024-01-01, 2024-02-01T10:00:00]}}",
        "data: {splits: {type: temporal, timestamps: [10, 20.5]}}",
        "sampling: {fanouts: {a__b__c: [5, 5], c__b__a: [-1, 5]}}",
        "{sampling: {fanouts: [5, 5, 5]}, model: {type: GCN, args: {num_layers: 3}}}",
        "model: {type: torch_geometric.nn.GCN, args: {num_layers: 7}}",
        "model: {type: GCN, args: {activation: {__type: torch.nn.ReLU}}}",
        "model: {type: GCN, args: {a: {__value_type: bool, value: 'false'}}}",
        "losses: [{type: mse, weight: 0.5, on: y}, cross_entropy]",
        "metrics: [accuracy, {type: torchmetrics.Accuracy, args: {task: binary}}]",
        "loggers: []",
        "scaling: {use_gpu: true, num_workers: 0, max_failures: -1}",
        "scaling: {use_gpu: auto, resources_per_worker: {disk: 1.5}}",
        "optimizer: {args: {lr: '${lr_scheduler.args.factor}'}}",
    ],
)
def test_what_is_right(text: str) -> None:
    load_config(text)


def test_user_components_with_their_module_allowed() -> None:
    text = (
        "{model: my_pkg.Net, init_env: my_pkg.prepare, "
        "callbacks: [my_pkg.Mine, {on_log: my_pkg.log}]}"
    )
    config = load_config(text, allow_modules=["my_pkg"]).config
    assert config.callbacks[1] == {"on_log": "my_pkg.log"}


def test_rules_between_sound_sections_hold_beside_broken_ones() -> None:
    text = "seed: x\nloader: {batch_size: 10}\ntraining: {global_batch_size: 15}"
    with raises("config-batch-size"):
        load_config(text)


def test_an_override_is_named_even_where_the_file_has_lines() -> None:
    text = "training:\n  max_steps: 5\n  log_every: {steps: 3}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(text, ["--training.max_steps=-1", "--training.log_every", "{steps: 0}"])
    assert caught.value.problems == (
        "--training.max_steps: training.max_steps=-1 is invalid: it must be greater than 0. "
        "Set a number greater than 0. [config-range]",
        "--training.log_every: training.log_every.steps=0 is invalid: it must be greater than 0. "
        "Set a number greater than 0. [config-range]",
    )


def test_an_override_into_an_unknown_section_is_named() -> None:
    with raises("config-unknown-key", "--trainig.max_steps", "trainig=", "Did you mean training"):
        load_config("seed: 1", ["--trainig.max_steps", "3"])


def test_a_mapping_has_no_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"seed": "x"})
    text = "seed='x' is invalid: it must be a whole number. Set a whole number. [config-type]"
    assert caught.value.problems == (text,)


def test_a_file_is_named_with_its_line(tmp_path: object) -> None:
    path = f"{tmp_path}/config.yaml"
    with open(path, "w") as file:
        file.write("\n\ntraining:\n  max_steps: 0\n")
    with raises("config-range", "config.yaml:4", "training.max_steps=0"):
        load_config(path)


def test_long_values_are_cut() -> None:
    with raises("config-type") as caught:
        load_config({"seed": "x" * 1000})
    assert len(str(caught.value)) < 300


def test_a_temporal_split_without_bounds_is_by_quantiles():
    section = load_config({"data": {"splits": {"type": "temporal"}}}).config.data
    assert section.splits.quantiles == [0.8, 0.9]
    dates = {"type": "temporal", "timestamps": [1, 2], "quantiles": None}
    assert load_config({"data": {"splits": dates}}).config.data.splits.quantiles is None
