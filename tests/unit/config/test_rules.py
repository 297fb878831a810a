"""Every rule of the config: its message names the place, the rule and the remedy."""

from __future__ import annotations

import pytest

from raygnn.config import ConfigError, load_config
from tests.errors import raises

_CASES = {
    "unknown key": (
        "training: {max_epoch: 3}",
        r"training\.max_epoch=3 is invalid: there is no such key\. Did you mean max_epochs\?",
    ),
    "other case": ("model: gcn", r"model\.type='gcn' is invalid: .*Did you mean GCN\? Set one of"),
    "unknown section": ("modle: GCN", r"modle='GCN' is.*Did you mean model\?"),
    "wrong type": ("seed: x", r"seed='x' is invalid: it must be a whole number"),
    "not a number": ("optimizer: {args: 3}", r"optimizer\.args=3 is invalid: it must be a mapping"),
    "section is a list": ("training: []", r"training=\[\] is invalid: it must be a mapping"),
    "bool for int": ("seed: true", r"seed=True is invalid: it must be a whole number"),
    "fraction for int": ("seed: 1.5", r"seed=1\.5 is invalid: it must be a whole number"),
    "text for bool": ("deterministic: 'yes'", r"deterministic='yes'.*must be true or false"),
    "number for text": ("run: {storage_path: 3}", r"run\.storage_path=3.*must be a text"),
    "empty text": ("run: {storage_path: ''}", r"must be a text that is not empty"),
    "null for a number": ("seed: null", r"seed=None is invalid: it must be a whole number"),
    "negative": ("seed: -1", r"seed=-1 is invalid: it must be at least 0"),
    "nan": ("training: {clip_grad_norm: .nan}", r"clip_grad_norm=nan is.*greater than 0|finite"),
    "zero period": (
        "training: {validate_every: {epochs: 0}}",
        r"training\.validate_every\.epochs=0 is invalid: it must be greater than 0",
    ),
    "empty period": (
        "training: {log_every: {}}",
        r"training\.log_every=\{\} is invalid: a period needs a unit\. Set it as in \{epochs: 1\}",
    ),
    "no choice": (
        "training: {precision: bf16}",
        r"precision='bf16' is invalid: there is no such choice\. Did you mean bf16-\w+\? Set one",
    ),
    "no format": (
        "training: {precision: {param: fp16}}",
        r"precision\.param='fp16' is invalid: there is no such choice\. .*Set one of: fp32, bf16",
    ),
    "no part": (
        "training: {precision: {weights: bf16}}",
        r"precision\.weights='bf16' is invalid: there is no such key.*param, buffer, input",
    ),
    "use_gpu": ("scaling: {use_gpu: maybe}", r"Set one of: auto, true, false"),
    "resource": ("scaling: {resources_per_worker: {disk: -1}}", r"disk=-1.*at least 0"),
    "shard": (
        "scaling: {shard: weights}",
        r"shard='weights' is.*Set one of: none, optimizer, full",
    ),
    "shared sparse rows": (
        "{scaling: {shard: optimizer}, model: {type: LightGCN, args: {sparse_embeddings: true}}}",
        r"scaling\.shard='optimizer' is invalid: with model\.args\.sparse_embeddings.*to none",
    ),
    "shared Adafactor": (
        "{scaling: {shard: full}, optimizer: {type: torch.optim.Adafactor}}",
        r"scaling\.shard='full' is invalid: torch's Adafactor does not work.*Set it to optimi",
    ),
    "failures": ("scaling: {max_failures: -2}", r"max_failures=-2.*at least -1"),
    "placement": ("scaling: {placement_strategy: pack}", r"Set one of: PACK, SPREAD"),
    "no limit": (
        "training: {max_epochs: null}",
        r"training\.max_epochs=None is invalid: training would never end.*max_epochs, max_steps",
    ),
    "two sources": (
        "data: {uri: x, synthetic: {type: rmat}}",
        r"data\.synthetic=.* is invalid: there is one data source at most, and data\.uri is set",
    ),
    "source and class": ("data: {uri: x, type: a.B}", r"data\.type='a\.B'.*data\.uri is set too"),
    "data args alone": ("data: {args: {x: 1}}", r"data\.args=.*arguments of data\.type, which is"),
    "synthetic type": ("data: {synthetic: {type: rmatt}}", r"Did you mean rmat\?"),
    "synthetic no type": (
        "data: {synthetic: {num_nodes: 3}}",
        r"data\.synthetic\.type is invalid: it is required",
    ),
    "split type": (
        "data: {splits: {type: hsh}}",
        r"data\.splits\.type='hsh' is invalid: there is no such choice\. Did you mean hash\?",
    ),
    "split no type": (
        "data: {splits: {fractions: [1, 0, 0]}}",
        r"data\.splits\.type is invalid: it is required\. Set one of: hash, per_class, temporal",
    ),
    "split key": (
        "data: {splits: {type: per_class, trian: 3}}",
        r"data\.splits\.trian=3.*Did you mean train\? Keys here: type, train, val, seed",
    ),
    "fractions": (
        "data: {splits: {type: hash, fractions: [0.8, 0.1, 0.2]}}",
        r"data\.splits\.fractions=.*the fractions sum to 1\.1, not to 1",
    ),
    "no train": ("data: {splits: {type: hash, fractions: [0, 0.5, 0.5]}}", r"left to train on"),
    "two fractions": ("data: {splits: {type: hash, fractions: [0.5, 0.5]}}", r"at least 3 entries"),
    "four fractions": (
        "data: {splits: {type: hash, fractions: [0.4, 0.2, 0.2, 0.2]}}",
        r"at most 3 entries, and has 4",
    ),
    "negative fraction": (
        "data: {splits: {type: hash, fractions: [1.1, 0, 0]}}",
        r"fractions\.0=1\.1 is invalid: it must be at most 1",
    ),
    "temporal": ("data: {splits: {type: temporal}}", r"exactly one of quantiles and timestamps"),
    "temporal both": (
        "data: {splits: {type: temporal, quantiles: [0.1, 0.2], timestamps: [1, 2]}}",
        r"exactly one of quantiles and timestamps",
    ),
    "temporal order": (
        "data: {splits: {type: temporal, quantiles: [0.9, 0.8]}}",
        r"data\.splits\.quantiles=\[0\.9, 0\.8\] is invalid: test would begin before val",
    ),
    "dates order": (
        "data: {splits: {type: temporal, timestamps: [2024-02-01, 2024-01-01]}}",
        r"test would begin before val",
    ),
    "dates and numbers": (
        "data: {splits: {type: temporal, timestamps: [2024-02-01, 5]}}",
        r"one is a date and one is a number",
    ),
    "no date": (
        "data: {splits: {type: temporal, timestamps: [soon, 2024-01-01]}}",
        r"timestamps\.0='soon' is invalid: it is no time",
    ),
    "fanout zero": ("sampling: {fanouts: [5, 0]}", r"fanouts\.1=0 is.*1 or more, or -1 for all"),
    "no fanouts": ("sampling: {fanouts: []}", r"sampling\.fanouts=\[\].*at least 1 entry"),
    "fanouts type": ("sampling: {fanouts: 5}", r"sampling\.fanouts=5 is.*must be a list"),
    "fanouts edge type": (
        "sampling: {fanouts: {follows: [5]}}",
        r"sampling\.fanouts\.follows=.*not the name of an edge type.*user__follows__user",
    ),
    "fanout below -1 of an edge type": (
        "sampling: {fanouts: {a__b__c: [0, -2]}}",
        r"fanouts.*-2 is.*Set 0 or more, or -1 for all of this edge type",
    ),
    "fanouts of a hop": (
        "sampling: {fanouts: {a__b__c: [5, 0], c__b__a: [5, 0]}}",
        r"fanouts.*a hop takes no neighbors of any edge type",
    ),
    "fanouts lengths": (
        "sampling: {fanouts: {a__b__c: [5], c__b__a: [5, 5]}}",
        r"edge types differ in their number of hops: \[1, 2\]",
    ),
    "weights and the latest": (
        "sampling: {weight: w, temporal: {strategy: last}}",
        r"sampling\.weight='w' is.*strategy is last, which draws nothing",
    ),
    "replacement and the latest": (
        "sampling: {replace: true, temporal: {strategy: last}}",
        r"sampling\.replace=True is.*strategy is last, which draws nothing",
    ),
    "weights of an own sampler": (
        "sampling: {weight: w, type: my.Sampler}",
        r"sampling\.weight='w' is.*an own sampler does not get it",
    ),
    "times of an own sampler": (
        "sampling: {temporal: {}, type: my.Sampler}",
        r"sampling\.temporal={} is.*an own sampler does not get it",
    ),
    "neighborhoods of an own sampler": (
        "sampling: {disjoint: true, type: my.Sampler}",
        r"sampling\.disjoint=True is.*an own sampler does not get it",
    ),
    "disjoint links": (
        "{sampling: {disjoint: true}, task: {type: link_prediction}}",
        r"sampling\.disjoint=True is invalid: in a batch of links.*Set it to false",
    ),
    "exact in time": (
        "{sampling: {temporal: {column: t}}, training: {eval: exact}}",
        r"training\.eval='exact' is.*Set it to sampled",
    ),
    "sampler args": ("sampling: {args: {x: 1}}", r"sampling\.args=.*sampling\.type, which is not"),
    "eval_batch_size": ("loader: {eval_batch_size: 0}", r"eval_batch_size=0.*greater than 0"),
    "train batch size": (
        "loader: {train: {batch_size: 5}}",
        r"loader\.train\.batch_size=5 is invalid: there is no such key",
    ),
    "layers": (
        "model: {type: GCN, args: {num_layers: 3}}",
        r"model\.args\.num_layers=3 is invalid: a layer goes one hop.*has 2: \[15, 10\]\. Set it t",
    ),
    "monitor test": (
        "early_stopping: {monitor: test/loss}",
        r"monitor='test/loss' is invalid: decisions must not look at the test split\. Set val/loss",
    ),
    "monitor name": ("early_stopping: {monitor: loss}", r"name of a logged metric.*val/loss"),
    "monitor split only": ("early_stopping: {monitor: val/}", r"name of a logged metric"),
    "checkpoint monitor": (
        "checkpoint: {monitor: test/auroc, mode: max}",
        r"checkpoint\.monitor='test/auroc'.*Set val/auroc",
    ),
    "early stopping mode": (
        "early_stopping: {monitor: val/accuracy}",
        r"early_stopping\.mode is invalid: it is required with monitor: val/accuracy.*max where",
    ),
    "mode choice": (
        "early_stopping: {mode: up}",
        r"early_stopping\.mode='up'.*Set one of: min, max",
    ),
    "patience": ("early_stopping: {patience: 0}", r"patience=0.*greater than 0"),
    "checkpoint mode": (
        "checkpoint: {monitor: val/accuracy}",
        r"checkpoint\.mode=?.*is invalid: it is required with monitor: val/accuracy",
    ),
    "checkpoint mode alone": (
        "checkpoint: {mode: max}",
        r"checkpoint\.mode='max' is invalid: it belongs to checkpoint\.monitor",
    ),
    "resume": (
        "checkpoint: {resume: allways}",
        r"neither a known word nor the path.*Set one of: a",
    ),
    "plateau": (
        "{lr_scheduler: ReduceLROnPlateau, early_stopping: null}",
        r"lr_scheduler\.monitor.*ReduceLROnPlateau needs a metric",
    ),
    "plateau mode": (
        "{metrics: [auroc], lr_scheduler: ReduceLROnPlateau, "
        "early_stopping: {monitor: val/auroc, mode: max}}",
        r"lr_scheduler\.args\.mode is invalid: val/auroc is better when it is more.*mode: max",
    ),
    "plateau frequency": (
        "lr_scheduler: {type: ReduceLROnPlateau, frequency: 2}",
        r"lr_scheduler\.frequency=2.*steps at each validation",
    ),
    "monitor unread": (
        "lr_scheduler: {type: StepLR, args: {step_size: 1}, monitor: val/loss}",
        r"lr_scheduler\.monitor='val/loss' is invalid: StepLR looks at no metric",
    ),
    "run name": ("run: {name: a/b}", r"run\.name='a/b' is invalid: it names a folder"),
    "short model": ("model: GNC", r"model\.type='GNC'|model='GNC' is invalid: there is no model"),
    "short metric": (
        "metrics: [acuracy]",
        r"metrics\.0.* is invalid: .*Did you mean accuracy\? Set one of: accuracy, ap, auc, auroc",
    ),
    "short loss": ("losses: [{type: crossentropy}]", r"Did you mean cross_entropy\?"),
    "loss weight": ("losses: [{type: mse, weight: -1}]", r"losses\.0\.weight=-1.*at least 0"),
    "short optimizer": ("optimizer: Adm", r"Did you mean Adam\? Set one of: ASGD"),
    "short logger": ("loggers: [tensorbord]", r"Did you mean tensorboard\?"),
    "injected": (
        "model: {type: GCN, args: {in_channels: 5}}",
        r"model\.args\.in_channels=5 is invalid: raygnn sets this argument itself\. Remove it",
    ),
    "injected params": ("optimizer: {type: SGD, args: {params: []}}", r"optimizer\.args\.params="),
    "injected optimizer": (
        "lr_scheduler: {type: StepLR, args: {optimizer: 1}}",
        r"lr_scheduler\.args\.optimizer=1",
    ),
    "data short": ("data: {type: Planetoid}", r"data\.type='Planetoid'.*no short names here"),
    "not allowed": (
        "model: my_pkg.Net",
        r"my_pkg\.Net' is invalid: it is outside of what this job may import \(torch,.*"
        r"Add --allow-module my_pkg",
    ),
    "nested not allowed": (
        "model: {type: GCN, args: {activation: {__type: os.system, command: ls}}}",
        r"model\.args\.activation\.__type='os\.system' is invalid: it is outside of",
    ),
    "nested in a list": (
        "model: {type: GCN, args: {a: [1, {b: {__type: os.x}}]}}",
        r"model\.args\.a\.1\.b\.__type='os\.x'",
    ),
    "nested type": ("model: {type: GCN, args: {a: {__type: 3}}}", r"__type=3.*a dotted path"),
    "value type": (
        "model: {type: GCN, args: {a: {__value_type: eval, value: x}}}",
        r"a\.__value_type='eval' is invalid: there is no such type.*Set one of: str, int, float",
    ),
    "value of type": (
        "model: {type: GCN, args: {a: {__value_type: int, value: x}}}",
        r"a\.value='x' is invalid: it cannot be read as int",
    ),
    "value bool": (
        "model: {type: GCN, args: {a: {__value_type: bool, value: maybe}}}",
        r"a\.value='maybe' is invalid: it cannot be read as bool",
    ),
    "value null": (
        "model: {type: GCN, args: {a: {__value_type: 'null', value: 3}}}",
        r"a\.value=3 is invalid: it cannot be read as null",
    ),
    "value keys": ("model: {type: GCN, args: {a: {__value_type: int}}}", r"needs exactly the keys"),
    "hook function": (
        "callbacks: [{on_train_start: torch.hub.load}]",
        r"callbacks\.0\.on_train_start='torch\.hub\.load' is invalid: a function is taken from us",
    ),
    "no hooks": ("callbacks: [{}]", r"callbacks\.0=\{\} is invalid: it needs at least 1 entry"),
    "callback": ("callbacks: [mine]", r"callbacks\.0=?.*no short names here"),
    "init_env": ("init_env: os.system", r"init_env='os\.system' is invalid: it is outside of"),
    "init_env library": ("init_env: torch.seed", r"init_env=.*taken from user modules only"),
    "component key": ("model: {type: GCN, arg: {}}", r"model\.arg=\{\}.*Did you mean args\?"),
    "component list": ("metrics: accuracy", r"metrics='accuracy' is invalid: it must be a list"),
    "metric without type": ("metrics: [{args: {}}]", r"metrics\.0\.type is invalid: it is requir"),
    "duplicate": ("seed: 1\nseed: 2", r"line 2: seed=2 is invalid: the key stands here again"),
    "env": ("seed: ${env:RAYGNN_NO_SUCH}", r"the environment variable RAYGNN_NO_SUCH is not set"),
}


@pytest.mark.parametrize("case", _CASES)
def test_rule(case: str) -> None:
    text, message = _CASES[case]
    with pytest.raises(ConfigError, match=message) as caught:
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


def test_an_unknown_hook() -> None:
    with raises("callback-hook-unknown", "Did you mean on_train_start? Hooks", "on_setup"):
        load_config("callbacks: [{on_trian_start: my_pkg.f}]", allow_modules=["my_pkg"])


def test_all_problems_are_told_at_once() -> None:
    text = "\n".join(
        (
            "seed: x",
            "modle: GCN",
            "training: {max_epoch: 3, global_batch_size: 10}",
            "model: {type: GCN, args: {num_layers: 3, in_channels: 2}}",
            "optimizer: Adm",
            "job_name: ${env:RAYGNN_NO_SUCH}",
            "lr_scheduler: {type: StepLR, args: {step_size: 1}, monitor: val/loss}",
        )
    )
    with pytest.raises(ConfigError) as caught:
        load_config(text, ["--sampling.fanots", "[1]", "--loader.num_thread", "2", "stray"])
    problems = "\n".join(caught.value.problems)
    for part in (
        "line 1: seed=",
        "line 2: modle=",
        "line 3: training.max_epoch=",
        "line 4: model.args.in_channels=",
        "line 5: optimizer.type='Adm'",
        "line 6: job_name=",
        "line 7: lr_scheduler.monitor=",
        "--sampling.fanots: sampling.fanots=[1] is invalid: there is no such key. Did you mean fan",
        "--loader.num_thread: loader.num_thread=2",
        "stray is invalid: it belongs to no override",
    ):
        assert part in problems


def test_rules_between_sound_sections_hold_beside_broken_ones() -> None:
    text = "seed: x\nloader: {batch_size: 10}\ntraining: {global_batch_size: 15}"
    with raises("config-batch-size"):
        load_config(text)


def test_rules_between_sections_are_silent_where_one_is_broken() -> None:
    text = "loader: {batch_size: 0}\ntraining: {global_batch_size: 15}"
    with raises("config-range", "greater than 0") as caught:
        load_config(text)
    assert len(caught.value.problems) == 1


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
