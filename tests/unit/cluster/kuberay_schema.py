"""The structure of KubeRay's resources, as its API reference describes them, in JSON Schema.

Of the fields that files of ours may have: an operator drops a field that it does not know, so a
misspelt one would be no error there. Sources: the references of `ray.io/v1`
(https://docs.ray.io/en/master/kuberay/references/api.html) and of Kubernetes' pods
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/), and the rules
that the operator checks beyond the schema (`ValidateRayClusterSpec`, `ValidateRayJobSpec`).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
WHOLE: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
SWITCH: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
# Names of resources that the operator makes names of services of: DNS-1035, less its suffixes.
NAME: Schema = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}
QUANTITY: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?$"}
# The least version of Ray that knows tokens is 2.52.
TOKEN_VERSION: Schema = {"type": "string", "pattern": r"^(2\.(5[2-9]|[6-9]\d|\d{3,})|[3-9])\."}


def _record(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least}


AMOUNTS = {"type": "object", "additionalProperties": QUANTITY}
VOLUME = _record(
    {"name": TEXT},
    {"emptyDir": _record({}, {"medium": {"enum": ["", "Memory"]}, "sizeLimit": QUANTITY})},
)
CONTAINER = _record(
    {"name": TEXT, "image": TEXT, "resources": _record({"requests": AMOUNTS, "limits": AMOUNTS})},
    {
        "ports": _list(_record({"containerPort": POSITIVE, "name": TEXT})),
        "env": _list(_record({"name": TEXT}, {"value": TEXT})),
        "volumeMounts": _list(_record({"mountPath": TEXT, "name": TEXT})),
    },
)
POD = _record(
    {"containers": _list(CONTAINER, least=1)},
    {
        "serviceAccountName": TEXT,
        "volumes": _list(VOLUME),
        "nodeSelector": TEXTS,
        "restartPolicy": {"const": "Never"},  # or unset, with version 2 of the autoscaler
    },
)
TEMPLATE = _record({"spec": POD})
HEAD_GROUP = _record({"rayStartParams": TEXTS, "template": TEMPLATE}, {"serviceType": TEXT})
WORKER_GROUP = _record(
    {
        "groupName": TEXT,
        "rayStartParams": TEXTS,
        "template": TEMPLATE,
        "minReplicas": WHOLE,
        "maxReplicas": WHOLE,
    },
    {"replicas": WHOLE, "numOfHosts": POSITIVE, "idleTimeoutSeconds": WHOLE},
)
AUTOSCALER = _record(
    {},
    {
        "version": {"enum": ["v1", "v2"]},
        "idleTimeoutSeconds": WHOLE,
        "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
    },
)
CLUSTER_SPEC = _record(
    {
        "rayVersion": TOKEN_VERSION,
        "authOptions": _record({"mode": {"enum": ["token", "disabled"]}}),
        "headGroupSpec": HEAD_GROUP,
        "workerGroupSpecs": _list(WORKER_GROUP),
    },
    {"enableInTreeAutoscaling": SWITCH, "autoscalerOptions": AUTOSCALER, "suspend": SWITCH},
)
JOB_SPEC = _record(
    {"entrypoint": TEXT, "rayClusterSpec": CLUSTER_SPEC},
    {
        "runtimeEnvYAML": TEXT,
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        "backoffLimit": WHOLE,
        "shutdownAfterJobFinishes": SWITCH,
        "ttlSecondsAfterFinished": WHOLE,
        "activeDeadlineSeconds": POSITIVE,
        "entrypointNumCpus": {"type": "number", "minimum": 0},
        "entrypointNumGpus": {"type": "number", "minimum": 0},
        "suspend": SWITCH,
    },
)


def _resource(kind: str, spec: Schema) -> Schema:
    metadata = _record({"name": NAME}, {"namespace": TEXT, "labels": TEXTS, "annotations": TEXTS})
    return _record(
        {
            "apiVersion": {"const": "ray.io/v1"},
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": spec,
        }
    )


#: By kind.
RESOURCES = {
    "RayCluster": _resource("RayCluster", CLUSTER_SPEC),
    "RayJob": _resource("RayJob", JOB_SPEC),
}
