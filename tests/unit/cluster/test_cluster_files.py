"""The files in cluster/: by Ray's own schema, by KubeRay's required fields, by the constraints."""

from __future__ import annotations

import copy
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv

from raygnn.config import load_config
from tests.unit.cluster.kuberay_schema import RESOURCES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "cluster"
RAY_CLUSTERS = ("ray-cluster.yaml", "ray-cluster-aws.yaml")
KUBERAY = ("kuberay-raycluster.yaml", "kuberay-rayjob.yaml")
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")

#: What the providers need, or understand, beyond Ray's schema, which does not look in here.
PROVIDER_KEYS = {
    "gcp": {"type", "region", "availability_zone", "project_id", "cache_stopped_nodes"},
    "aws": {"type", "region", "availability_zone", "cache_stopped_nodes"},
}
# Fields of https://cloud.google.com/compute/docs/reference/rest/v1/instances and of
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html.
NODE_KEYS = {
    "gcp": {"machineType", "disks", "serviceAccounts", "metadata", "scheduling"},
    "aws": {"InstanceType", "ImageId", "IamInstanceProfile", "BlockDeviceMappings"},
}


def _load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def _pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert found, package
    return found[1]


@pytest.mark.parametrize("name", RAY_CLUSTERS)
class TestRayCluster:
    def test_it_is_valid_by_rays_schema(self, name):
        config = _load(name)
        schema = json.loads(Path(ray.autoscaler.__file__).with_name("ray-schema.json").read_text())
        jsonschema.validate(config, schema)
        # Fills in the provider's defaults first, as `ray up` does.
        validate_config(prepare_config(copy.deepcopy(config)))

    def test_what_the_schema_leaves_free_has_known_keys(self, name):
        config = _load(name)
        provider = config["provider"]["type"]
        assert set(config["provider"]) == PROVIDER_KEYS[provider]
        for node in config["available_node_types"].values():
            assert set(node["node_config"]) <= NODE_KEYS[provider]

    def test_a_head_without_work_and_gpu_workers_from_none(self, name):
        nodes = _load(name)["available_node_types"]
        assert nodes["head"]["resources"] == {"CPU": 0}
        worker = nodes["gpu_worker"]
        assert (worker["min_workers"], worker["resources"]["GPU"]) == (0, 1)

    def test_ports_are_fixed_and_do_not_meet(self, name):
        config = _load(name)
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            command = config[key][-1]
            ports = [int(port) for port in re.findall(r"port=(\d+)", command)]
            assert len(ports) == len(set(ports))
            low, high = (
                int(port) for port in re.findall(r"(?:min|max)-worker-port=(\d+)", command)
            )
            assert not [p for p in ports if low < p < high]
            assert not [p for p in ports if 10002 <= p <= 19999]  # Ray's default for workers
        assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
        assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
        assert "/home/ray/.ray/auth_token" in config["file_mounts"]


def test_gpu_machines_of_google_are_ended_for_maintenance():
    worker = _load("ray-cluster.yaml")["available_node_types"]["gpu_worker"]["node_config"]
    assert worker["scheduling"]["onHostMaintenance"] == "TERMINATE"


class TestKubeRay:
    @pytest.mark.parametrize("name", KUBERAY)
    def test_it_is_what_the_operator_takes(self, name):
        document = _load(name)
        jsonschema.validate(document, RESOURCES[document["kind"]])
        spec = document["spec"]
        cluster = spec.get("rayClusterSpec", spec)
        assert cluster["rayVersion"] == _pinned("ray")
        assert cluster["authOptions"] == {"mode": "token"}
        _check_pod(cluster["headGroupSpec"])
        for group in cluster["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
            _check_pod(group)

    def test_a_job_that_comes_with_its_cluster_and_goes_with_it(self):
        document = _load("kuberay-rayjob.yaml")
        spec = document["spec"]
        assert document["kind"] == "RayJob"
        assert spec["rayClusterSpec"] == _load("kuberay-raycluster.yaml")["spec"]
        assert spec["shutdownAfterJobFinishes"] is True  # else the time to live means nothing
        assert spec["ttlSecondsAfterFinished"] > 0
        RuntimeEnv(**yaml.safe_load(spec["runtimeEnvYAML"]))
        # What it runs is a command of raygnn's, down to the keys of the config.
        python, option, module, _, *overrides = spec["entrypoint"].split()
        assert (python, option, module) == ("python", "-m", "raygnn.train")
        scaling = load_config({}, overrides).config.scaling
        workers = spec["rayClusterSpec"]["workerGroupSpecs"][0]
        assert (workers["minReplicas"], scaling.num_workers) == (0, 2)
        # Else the job would end for want of nodes, or ask for CPUs and get one GPU for both.
        assert (scaling.use_gpu, scaling.wait_for_nodes_s) == (True, 900)


def _check_pod(group: dict[str, Any]) -> None:
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    # A pod whose limits differ from its requests is throttled, or killed first.
    assert container["resources"]["requests"] == container["resources"]["limits"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_have_the_versions_of_the_constraints(name):
    text = (FOLDER / name).read_text()
    base = re.search(r"^FROM rayproject/ray:(\S+?)-py(\d)(\d+)-(\w+)$", text, re.M)
    assert base, text
    assert base[1] == _pinned("ray") == version("ray")
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={base[2]}.{base[3]}"' in project
    torch = re.search(r"torch==([\d.]+)", text)
    assert torch
    assert torch[1] == _pinned("torch")
    assert "-c constraints.txt" in text
    # All that is copied into the image is let through to the builder, and there is.
    passed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    for line in re.findall(r"^COPY --chown=\S+ (.+) \S+$", text, re.M):
        for path in line.split():
            assert path in passed
            assert (ROOT / path).exists()
