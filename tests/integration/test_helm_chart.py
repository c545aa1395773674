"""The Helm chart: what Helm renders is what a server takes, and what cannot work is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import helm
from deploy.local.cache import ServerUnavailable
from directory.server.process import main
from tests.support.identities import Authority

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "kdir"
NEEDED = {"image": {"repository": "registry.example/kdir"}, "tls": {"secretName": "la-tls"}}
ETCD = {"type": "etcd", "etcd": {"address": "etcd://etcd-1:2379,etcd-2:2379/kdir/la"}}


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return helm.installed()
    except ServerUnavailable as reason:
        # Helm takes Go minutes to build: `make test` does not.
        pytest.skip(str(reason))


class Chart:
    """Helm on the chart, with the values that it needs and some more."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def __call__(self, command: str, **values: Any) -> subprocess.CompletedProcess[str]:
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(NEEDED | values))
        release = ["la"] if command == "template" else []
        return subprocess.run(
            [self._program, command, *release, CHART, "--values", file, "--namespace", "kafka",
             "--kube-version", "1.31.0"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def objects(self, **values: Any) -> dict[str, Any]:
        """Returns the rendered objects by kind."""
        done = self("template", **values)
        assert done.returncode == 0, done.stderr
        found = [one for one in yaml.safe_load_all(done.stdout) if one]
        assert len({one["kind"] for one in found}) == len(found)
        return {one["kind"]: one for one in found}


@pytest.fixture
def chart(program: Path, tmp_path: Path) -> Chart:
    return Chart(program, tmp_path)


def test_helm_lints_the_chart(chart: Chart) -> None:
    done = chart("lint", store=ETCD, replicas=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize(
    ("values", "store"),
    [
        ({}, "sqlite:////var/lib/kdir/kdir.sqlite"),
        ({"store": ETCD, "replicas": 3}, "etcd://etcd-1:2379,etcd-2:2379/kdir/la"),
    ],
)
def test_a_server_takes_the_rendered_config(
    chart: Chart,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    values: dict[str, Any],
    store: str,
) -> None:
    config = (
        'mount = "/la"\nparent = ["root:7420"]\naccess = "enforce"\n\n[kafka]\n'
        'bootstrap = ["kafka-1:9092"]\nlisteners = { edge = { bootstrap = ["kafka:9094"] } }\n'
    )
    text = chart.objects(config=config, **values)["ConfigMap"]["data"]["kdir.toml"]
    names = re.findall(r'advertise = \["(@POD@[^"]+)"\]', text)
    assert names == ["@POD@.la-kdir.kafka.svc.cluster.local:7420"]
    issued = Authority(tmp_path).issue("la")
    for name, part in (("tls.crt", "cert"), ("tls.key", "key"), ("ca.crt", "ca")):
        text = text.replace(f"/etc/kdir/tls/{name}", str(issued.files[part]))
    text = text.replace("@POD@", "la-kdir-0")
    file = tmp_path / "kdir.toml"
    file.write_text(text)
    assert main(["--check", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"la: would serve /la on 0.0.0.0:7420 from {store}" in shown
    assert "callers authenticate by a client certificate of the CA" in shown


def test_one_server_keeps_its_store_on_a_volume(chart: Chart) -> None:
    objects = chart.objects()
    claims = objects["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert [one["metadata"]["name"] for one in claims] == ["data"]
    assert "PodDisruptionBudget" not in objects  # it would only keep a node from being drained


def test_several_servers_share_etcd_and_never_leave_together(chart: Chart) -> None:
    objects = chart.objects(store=ETCD, replicas=3)
    spec = objects["StatefulSet"]["spec"]
    assert spec["replicas"] == 3
    assert "volumeClaimTemplates" not in spec
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    selector = objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= spec["template"]["metadata"]["labels"].items()
    assert objects["Service"]["spec"]["selector"] == selector


def test_pods_run_with_no_more_rights_than_they_need(chart: Chart) -> None:
    pod = chart.objects()["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for one in (*pod["containers"], *pod["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    asked = {
        name: re.findall(r":9420/(\w+)", probe["exec"]["command"][-1])
        for name, probe in pod["containers"][0].items()
        if name.endswith("Probe")
    }
    assert asked == {
        "startupProbe": ["healthz"],
        "livenessProbe": ["healthz"],
        "readinessProbe": ["readyz"],
    }


def test_a_probe_asks_its_own_pod_whatever_proxy_the_environment_names(chart: Chart) -> None:
    pod = chart.objects()["StatefulSet"]["spec"]["template"]["spec"]
    _, *arguments = pod["containers"][0]["livenessProbe"]["exec"]["command"]
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            asked = arguments[-1].replace(":9420/healthz", f":{server.server_port}/")
            done = subprocess.run(
                [sys.executable, arguments[0], asked],
                env={"http_proxy": "http://127.0.0.1:9"}, check=False,
            )  # fmt: skip
        finally:
            server.shutdown()
    assert done.returncode == 0


def test_secrets_and_monitoring_are_there_where_they_are_asked_for(chart: Chart) -> None:
    proxy = {"name": "proxy", "image": "p", "ports": [{"name": "metrics", "containerPort": 9421}]}
    objects = chart.objects(
        secrets=["kafka"],
        extraContainers=[proxy],
        podMonitor={"enabled": True},
        alerts={"enabled": True},
    )
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["kdir", "proxy"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["secret-kafka"] == "/etc/kdir/secrets/kafka"
    assert mounts.keys() | {"template"} == {one["name"] for one in pod["volumes"]} | {"data"}
    monitor = objects["PodMonitor"]["spec"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "metrics"
    # The alert on a server that does not answer, and panels of the dashboard, select this job.
    labels = objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert labels[monitor["jobLabel"]] == "kdir"
    alerts = yaml.safe_load((ROOT / "deploy" / "dashboards" / "alerts.yaml").read_text())
    assert objects["PrometheusRule"]["spec"] == alerts


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": {}}, "image.repository: needed"),
        ({"tls": {}}, "tls.secretName: needed"),
        ({"replicas": 2}, "replicas: found 2; several servers share a store"),
        ({"store": {"type": "etcd"}}, "store.etcd.address: needed"),
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"config": 'mount = "/"\nlisten = "x"\n'}, "config: listen is written by the chart"),
        ({"config": 'mount = "/"\n[tls]\n'}, "config: [tls] is written by the chart"),
        ({"podMonitor": {"enabled": True}}, "podMonitor: /metrics is on loopback"),
    ],
)
def test_what_cannot_work_is_refused_by_helm(
    chart: Chart, values: dict[str, Any], message: str
) -> None:
    done = chart("template", **values)
    assert done.returncode == 1
    assert message in done.stderr
