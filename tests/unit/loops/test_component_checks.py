"""Arguments of components are checked before there is a graph, with all other mistakes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from raygnn.config import load_config
from raygnn.config.registry import SLOTS
from raygnn.errors import ConfigError
from tests.errors import error_cases, raises

ROOT = Path(__file__).parents[3]
CONFIGS = sorted(
    path
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.yaml")
    if "\nmodel:" in f"\n{path.read_text()}"
)

#: One mistake of every kind, and what the answer says of it, in the order of the answer.
MISTAKES = """\
seed: first
data: {uri: graph, syntetic: {type: rmat}}
task: {type: node_classification, args: {labl: y, feature: 3}}
sampling: {fanouts: [5, -7]}
model: {type: GraphSAGE, args: {hiden_channels: 8, dropout: 7}}
losses:
  - {type: cross_entropy}
  - {type: torch.nn.HuberLoss, args: {dleta: 1}}
  - {type: my_pkg.Loss}
metrics: [{type: acuracy}, {type: hits}, {type: f1_macro, args: {average: no}}]
optimizer: {type: AdamW, args: {lrr: 0.1}}
lr_scheduler: {type: StepLR}
early_stopping: {monitor: val/acuracy, mode: max}
checkpoint: {resume: allways}
callbacks: [{on_trian_start: my_pkg.f}]
loggers: [{type: tensorboard, args: {evry: 1}}]
training: {max_epochs: null, grad_reduction: median}
scaling: {num_workers: [3, 1]}
run: {name: "a/b", storage_path: "${env:NO_SUCH_VARIABLE}"}
"""
OVERRIDES = ("--modle.type=GCN", "--loader.num_thread", "2", "stray")
ANSWERS = (
    "line 1: seed='first' is invalid",
    "line 2: data.syntetic={'type': 'rmat'} is invalid",
    "line 3: task.args.labl='y' is invalid: node_classification takes no such argument",
    "line 4: sampling.fanouts",
    "line 5: model.args.hiden_channels=8 is invalid: GraphSAGE takes no such argument. "
    "Did you mean hidden_channels?",
    "line 8: losses.1.args.dleta=1 is invalid: torch.nn.HuberLoss takes no such argument",
    "line 9: losses.2.type='my_pkg.Loss' is invalid",
    "line 10: metrics.0.type='acuracy' is invalid",
    "line 10: metrics.1.type='hits' is invalid: it is not defined for",
    "line 10: metrics.2.args.average=",
    "line 11: optimizer.args.lrr=0.1 is invalid: AdamW takes no such argument",
    "line 12: lr_scheduler.args.step_size is invalid: StepLR needs this argument",
    "line 14: checkpoint.resume='allways' is invalid",
    "line 15: callbacks.0.on_trian_start='my_pkg.f' is invalid: unknown hook",
    "line 16: loggers.0.args.evry=1 is invalid: tensorboard takes no such argument",
    "line 17: training.max_epochs=None is invalid",
    "line 17: training.grad_reduction='median' is invalid",
    "line 18: scaling.num_workers=[3, 1] is invalid",
    "line 19: run.name='a/b' is invalid",
    "line 19: run.storage_path",
    "--modle.type: modle",
    "--loader.num_thread: loader.num_thread=2 is invalid: unknown key. Did you mean num_threads?",
    "stray is invalid: it is not part of an override",
)


def test_one_mistake_of_every_kind_is_one_answer() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(MISTAKES, OVERRIDES)
    problems = list(raised.value.problems)
    missing = [answer for answer in ANSWERS if not any(p.startswith(answer) for p in problems)]
    assert not missing, "\n".join([*missing, "---", *problems])
    assert len(set(problems)) == len(problems)


@pytest.mark.parametrize(
    ("text", "answer"),
    error_cases(
        """
model: {type: GCN, args: {dropout: 7}}
    model-argument | line 1 | dropout=7
data: {synthetic: {type: rmat, num_nodez: 3}}
    config-unknown-key | line 1 | data.synthetic.num_nodez=3
model: {type: GAT, args: {hidden_channels: 9}}
    model-heads | line 1 | model.args.hidden_channels=9 | 8 or 16
losses: [{type: cross_entropy, args: {label_smoothing: x}}]
    loss-argument | losses.0.args.label_smoothing='x' | a number
{task: link_prediction, metrics: [{type: hits, args: {ks: 3}}]}
    metric-ks | metrics.0.args.ks=3 | a list
model: {type: Hetero, args: {hiden: 7}}
    component-argument-unknown | Hetero
model: {type: LightGCN, args: {hiden: 7}}
    component-argument-unknown | LightGCN
model: {type: torch_geometric.nn.GIN, args: {a: 1}}
    component-argument-missing | GIN
optimizer: {type: SGD, args: {lr: -1}}
    component-refuses-arguments | SGD
lr_scheduler: {type: OneCycleLR, args: {max_lr: 1}}
    component-refuses-arguments | OneCycleLR
model: {type: LightGCN, args: {sparse_embeddings: true}}
    optimizer-dense | optimizer= | Adam | sparse_embeddings | Adagrad
{model: {type: HGT, args: {sparse_embeddings: true}}, optimizer: {type: SGD,
args: {weight_decay: 0.1}}}
    optimizer-dense | line 1 | SGD | weight_decay
metrics: [mrr]
    metric-problem | metrics.0.type='mrr'
{task: link_prediction, metrics: [accuracy]}
    metric-problem | accuracy
{task: link_prediction, metrics: [{type: hits, args: {ks: [0]}}]}
    metric-ks | line 1 | metrics.0.args.ks.0=0
{task: link_prediction, metrics: [{type: hits, args: {ks: []}}]}
    metric-ks | line 1 | metrics.0.args.ks=[]
{task: link_prediction, sampling: {disjoint: true}}
    sampling-disjoint-links | line 1 | sampling.disjoint=True
{task: link_prediction, sampling: {type: full}}
    sampling-links-sampler | line 1 | sampling.type='full'
task: {args: {feature: 3}}
    config-type | task.args.feature=3
task: {type: link_prediction, args: {negatives: hard}}
    task-argument-choice | negatives='hard'
task: {type: link_prediction, args: {decoder: {type: distmult, args: {a: 1}}}}
    component-argument-unknown | task.args.decoder.args.a=1 | distmult
early_stopping: {monitor: val/acuracy, mode: max}
    monitor-unknown | line 1 | early_stopping.monitor='val/acuracy' | Did you mean val/accuracy
{task: link_prediction, checkpoint: {monitor: val/hits@11, mode: max}}
    monitor-unknown | checkpoint.monitor='val/hits@11'
{metrics: [auroc], early_stopping: {monitor: val/accuracy, mode: max}}
    monitor-unknown | val/loss, val/auroc
tune: {metric: val/acuracy, space: {seed: {choice: [1]}}}
    monitor-unknown | line 1 | tune.metric='val/acuracy' | Did you mean val/accuracy?
lr_scheduler: {type: ReduceLROnPlateau, monitor: val/lss}
    monitor-unknown | lr_scheduler.monitor='val/lss'
"""
    ),
)
def test_a_config_that_is_right_in_all_else(text: str, answer: tuple[str, ...]) -> None:
    loaded = load_config(text)
    with raises(*answer):
        pickle.loads(pickle.dumps(loaded)).check_arguments()


def test_values_with_a_type_and_objects_are_not_mistakes() -> None:
    value = '{__value_type: int, value: "8"}'
    activation = "{__type: torch.nn.Linear, in_features: 1, out_features: 1}"
    load_config(f"model: {{args: {{hidden_channels: {value}}}}}").check_arguments()
    load_config(f"model: {{type: GAT, args: {{edge_dim: {activation}}}}}").check_arguments()


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_examples_pass(path: Path) -> None:
    load_config(path, allow_modules=["examples", "my_code"]).check_arguments()


@pytest.mark.parametrize("model", sorted(SLOTS["model"].names))
def test_models_need_no_arguments_that_the_graph_gives(model: str) -> None:
    args = {"conv": "GraphSAGE"} if model == "Hetero" else {}
    load_config({"model": {"type": model, "args": args}}).check_arguments()


@pytest.mark.parametrize(
    "text",
    [
        "{metrics: [my_pkg.Mine], early_stopping: {monitor: val/mine, mode: max}}",
        "{task: my_pkg.Mine, early_stopping: {monitor: val/mine, mode: max}}",
        "{callbacks: [my_pkg.Mine], early_stopping: {monitor: val/mine, mode: max}}",
        "{model: my_pkg.Mine, losses: [{type: my_pkg.mine, args: {a: 1}}]}",
    ],
)
def test_what_is_the_users_own_is_left_to_the_workers(text: str) -> None:
    load_config(text, allow_modules=["my_pkg"]).check_arguments()


def test_an_unknown_hook() -> None:
    loaded = load_config("callbacks: [{on_trian_start: my_pkg.f}]", allow_modules=["my_pkg"])
    with raises("callback-hook-unknown", "Did you mean on_train_start? Hooks", "on_setup"):
        loaded.check_arguments()


def test_sections_that_trials_vary_are_left_out() -> None:
    loaded = load_config("{model: {args: {a: 1}}, optimizer: {args: {b: 2}}}")
    with raises("component-argument-unknown", "b=2") as raised:
        loaded.check_arguments(left_out={"model"})
    assert len(raised.value.problems) == 1
