"""The Helm chart: its values fit their schema; and, where helm is, it renders to objects that hold together."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from devstack import paths
from sluice import __version__
from sluice.cli import all_commands
from sluice.config.surroundings import OTHERS, VARIABLES

CHART = paths.repo_root() / "deploy" / "chart"
EVERYTHING = {
    "serve.allowInsecure": "true",
    "serve.autoscaling.enabled": "true",
    "run.pipelines[0]": "shop_to_reporting",
    "sparkConnect.enabled": "true",
    "networkPolicy.enabled": "true",
    "monitoring.serviceMonitor.enabled": "true",
    "monitoring.rules.enabled": "true",
    "monitoring.dashboard.enabled": "true",
    "pipelines.shop\\.yaml": "version: 1",
    "store": "s3://bucket/sluice",
}


def load(name: str) -> Any:
    return YAML(typ="safe").load((CHART / name).read_text(encoding="utf-8"))


def test_the_values_fit_their_schema_and_none_is_missing_there() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(load("values.yaml"), schema)
    assert set(load("values.yaml")) == set(schema["properties"]) - {"global"}
    assert set(load("values.yaml")["sparkConnect"]) == set(schema["properties"]["sparkConnect"]["properties"])


def test_the_charts_version_is_the_products() -> None:
    chart = load("Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (
        __version__.replace(".dev", "-dev"),
        __version__,
    )  # Helm wants SemVer
    assert load("examples/airflow-values.yaml")["images"]["airflow"]["tag"] == __version__


def test_alerts_and_dashboard_are_those_of_the_documentation() -> None:
    for name in ("alerts.yaml", "dashboard.json"):
        assert (CHART / "files" / name).resolve() == paths.repo_root() / "docs" / "monitoring" / name


@pytest.fixture(scope="module")
def helm() -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("there is no helm here")
    return found


def rendered(helm: str, **values: str) -> list[dict[str, Any]]:
    given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [helm, "template", "rel", str(CHART), "--kube-version", "1.31.0", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one for one in YAML(typ="safe").load_all(done.stdout) if one]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in objects if one["kind"] == "Deployment"}


@pytest.mark.full
def test_helm_lints_the_chart(helm: str) -> None:
    done = subprocess.run(
        [helm, "lint", "--strict", str(CHART), "--set", "serve.allowInsecure=true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_without_logins_and_tls_the_service_is_refused(helm: str) -> None:
    done = subprocess.run(
        [helm, "template", "rel", str(CHART), "--kube-version", "1.31.0"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "serve.allowInsecure" in done.stderr


def refusal(helm: str, **values: str) -> str:
    given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [helm, "template", "rel", str(CHART), "--kube-version", "1.31.0", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, "helm rendered what has to be refused"
    return done.stderr


@pytest.mark.full
def test_each_pipeline_is_an_object_of_its_own(helm: str) -> None:
    names = ["shop", "a_b", "a-b", "A-b", "x" * 70, "x" * 71]
    values = {f"run.pipelines[{number}]": name for number, name in enumerate(names)}
    objects = rendered(helm, **{"serve.enabled": "false", "store": "s3://bucket/sluice"}, **values)
    deployments = [one for one in objects if one["kind"] == "Deployment"]
    assert [one["spec"]["template"]["spec"]["containers"][0]["args"][2] for one in deployments] == names
    for what in (
        {one["metadata"]["name"] for one in deployments},
        {json.dumps(one["spec"]["selector"], sort_keys=True) for one in deployments},
    ):
        assert len(what) == len(names)
    assert all(len(one["metadata"]["name"]) <= 63 for one in deployments)
    assert all(len(value) <= 63 for one in deployments for value in one["metadata"]["labels"].values())


@pytest.mark.full
def test_a_pipeline_without_a_store_is_refused(helm: str) -> None:
    assert "give store" in refusal(helm, **{"serve.enabled": "false", "run.pipelines[0]": "shop"})


@pytest.mark.full
def test_files_come_from_texts_maps_and_volumes(helm: str) -> None:
    values = {
        "serve.allowInsecure": "true",
        "pipelinesVolume.persistentVolumeClaim.claimName": "pipelines",
        "rulesConfigMap": "my-rules",
        "channels.shop\\.yaml": "version: 1",
        "formats.flat\\.py": "FORMAT = None",
    }
    objects = rendered(helm, **values)
    spec = pods(objects)["rel-serve"]["spec"]
    volumes = {one.pop("name"): one for one in spec["volumes"]}
    assert volumes["pipelines"] == {"persistentVolumeClaim": {"claimName": "pipelines"}}
    assert volumes["rules"] == {"configMap": {"name": "my-rules"}}, "a pod waits for a map that has to exist"
    assert volumes["channels"] == {"configMap": {"name": "rel-channels"}}
    assert volumes["targets"] == {"emptyDir": {}}
    assert volumes["formats"] == {"configMap": {"name": "rel-formats"}}
    assert "rel-channels" in {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    assert "give one of pipelines" in refusal(helm, **values, pipelinesConfigMap="mine")


@pytest.mark.full
def test_only_pods_of_the_release_reach_spark(helm: str) -> None:
    objects = rendered(helm, **{"serve.enabled": "false", "sparkConnect.enabled": "true"})
    [policy] = [one for one in objects if one["kind"] == "NetworkPolicy"]
    [spark] = pods(objects).values()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= spark["metadata"]["labels"].items()
    [rule] = policy["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "sluice", "app.kubernetes.io/instance": "rel"}}}
    ]


@pytest.mark.full
def test_kernels_are_kept_where_they_can_be_written(helm: str) -> None:
    for pod in pods(rendered(helm, **EVERYTHING)).values():
        [container] = pod["spec"]["containers"]
        folder = next(one["value"] for one in container["env"] if one["name"] == "NUMBA_CACHE_DIR")
        [prepare] = pod["spec"]["initContainers"]
        assert prepare["command"][-1] == folder
        assert any(
            folder.startswith(one["mountPath"] + "/") and not one.get("readOnly") for one in container["volumeMounts"]
        )


@pytest.mark.full
def test_every_pod_is_restricted_and_probed(helm: str) -> None:
    found = pods(rendered(helm, **EVERYTHING))
    assert {name.rsplit("-", 1)[0] if "-run-" in name else name for name in found} == {
        "rel-serve", "rel-run-shop-to-reporting", "rel-spark-connect",
    }  # fmt: skip
    for name, pod in found.items():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"], name
        for container in pod["spec"]["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                check = container[probe].get("httpGet") or container[probe]["tcpSocket"]
                assert check["port"] in ports, (name, probe)


@pytest.mark.full
def test_services_and_budgets_select_pods_that_there_are(helm: str) -> None:
    objects = rendered(helm, **EVERYTHING)
    labels = [pod["metadata"]["labels"] for pod in pods(objects).values()]
    ports = {p["name"] for pod in pods(objects).values() for c in pod["spec"]["containers"] for p in c["ports"]}
    kinds = {one["kind"] for one in objects}
    assert kinds >= {
        "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "PodMonitor", "PrometheusRule",
        "ConfigMap", "ServiceAccount",
    }  # fmt: skip
    for one in objects:
        selector = one["spec"].get("selector", {}) if "spec" in one else {}
        wanted = selector.get("matchLabels", selector if one["kind"] == "Service" else {})
        if wanted:
            assert any(wanted.items() <= found.items() for found in labels), one["metadata"]["name"]
        if one["kind"] == "Service":
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports


@pytest.mark.full
def test_commands_and_variables_exist(helm: str) -> None:
    known = {one.name for one in (*VARIABLES, *OTHERS)} | {"HOME", "POD_IP"}
    for name, pod in pods(rendered(helm, **EVERYTHING)).items():
        for container in pod["spec"]["containers"]:
            variables = {one["name"] for one in container["env"] if not one["name"].startswith("SPARK_")}
            assert variables <= known, name
            if container["args"][0] == "sluice":
                command: Any = all_commands().commands[container["args"][1]]  # type: ignore[attr-defined]
                options = {word for parameter in command.params for word in parameter.opts}
                given = {word.split("=")[0] for word in container["args"][2:] if word.startswith("--")}
                assert given <= options, name


@pytest.mark.full
def test_the_alert_rules_are_not_taken_for_templates(helm: str) -> None:
    [rule] = [one for one in rendered(helm, **EVERYTHING) if one["kind"] == "PrometheusRule"]
    plain = YAML(typ="safe").load((paths.repo_root() / "docs/monitoring/alerts.yaml").read_text(encoding="utf-8"))
    assert rule["spec"] == plain
