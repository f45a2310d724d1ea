"""The files in `deploy/` fit the server that they start, and are what the programs that read them take.

Helm and systemd read their files where they are installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakebed.cli.kit.tree import app
from lakebed.server.process.draining import CUT_S
from lakebed.server.process.serving import CLOSE_S
from tests.kv.servers import go_program, python_packages

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "lakebed"
VALUE = re.compile(r"\.Values\.([A-Za-z.]+)")
CLOSING_S = CUT_S + CLOSE_S


def arguments(words: list[str]) -> dict[str, Any]:
    """Read the words behind `lakebed` with the real parser. It raises for an option or a value that we do not have."""
    with app.make_context("lakebed", list(words)) as context:
        name, command, rest = app.resolve_command(context, list(words))
        assert name == "serve"
        assert command is not None
        with command.make_context(name, rest, parent=context) as parsed:
            return dict(parsed.params)


def seconds_of(parsed: dict[str, Any]) -> float:
    """How long a server with these arguments may take to end."""
    return float(parsed["notice"] + parsed["drain"] + CLOSING_S)


def of_dockerfile() -> list[str]:
    [line] = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]
    return list(json.loads(line.removeprefix("CMD ")))


def of_unit() -> list[str]:
    program, *rest = shlex.split(unit()["ExecStart"])
    assert program.endswith("/lakebed")
    return rest


def of_compose() -> list[str]:
    return list(compose()["services"]["lakebed-1"]["command"])


def of_chart() -> list[str]:
    """The arguments with the chart's own values in them."""
    text = (CHART / "templates" / "deployment.yaml").read_text()
    listed = text.partition(" args:\n")[2].partition(" envFrom:")[0]
    words = re.findall(r"^ +- (.+)$", listed, re.MULTILINE)
    return [
        re.sub(r"\{\{ \.Values\.(\w+) \| quote \}\}", lambda found: str(values()[found[1]]), word) for word in words
    ]


def unit() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "lakebed.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


@pytest.mark.parametrize("command", [of_dockerfile, of_unit, of_compose, of_chart])
def test_the_command_line_takes_the_arguments(command: Callable[[], list[str]]) -> None:
    parsed = arguments(command())

    assert str(parsed["data"]) == "/var/lib/lakebed"
    assert parsed["port"] == 8000


@pytest.mark.parametrize("words", [["serve", "--drian", "1"], ["serve", "--notice", "soon"], ["sevre"]])
def test_arguments_that_no_command_has_are_noticed(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|is not a number|unknown"):
        arguments(words)


def test_each_manager_waits_longer_than_a_server_may_take_to_end() -> None:
    [grace] = re.findall(r"terminationGracePeriodSeconds: (.+)", (CHART / "templates" / "deployment.yaml").read_text())
    chart = values()

    assert int(unit()["TimeoutStopSec"]) > seconds_of(arguments(of_unit()))
    assert int(compose()["services"]["lakebed-1"]["stop_grace_period"].removesuffix("s")) > seconds_of(
        arguments(of_compose())
    )
    assert grace == "{{ add .Values.notice .Values.drain .Values.close }}"
    assert chart["close"] > CLOSING_S


def test_servers_give_more_notice_than_their_balancer_needs() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    [(interval, fall)] = re.findall(r"inter (\d+)s fall (\d+)", text)
    template = (CHART / "templates" / "deployment.yaml").read_text()
    [(period, failures)] = re.findall(
        r"path: /_ready.*\n +periodSeconds: (\d+)\n.*\n +failureThreshold: (\d+)", template
    )

    # One more probe may be under way.
    assert arguments(of_compose())["notice"] > int(interval) * (int(fall) + 1)
    assert values()["notice"] > int(period) * (int(failures) + 1)


class TestCompose:
    def test_the_servers_share_a_database_and_an_object_store_and_no_folder(self) -> None:
        services = compose()["services"]
        first, second = services["lakebed-1"], services["lakebed-2"]

        assert first["environment"] == second["environment"]
        assert first["environment"]["LAKEBED_BLOCKSTORE"] == "s3"
        assert first["volumes"] != second["volumes"]

    def test_the_balancer_knows_every_server(self) -> None:
        text = (DEPLOY / "haproxy.cfg").read_text()
        servers = {name for name in compose()["services"] if re.fullmatch(r"lakebed-\d", name)}

        assert set(re.findall(r"-(lakebed-\d):8000", text)) == servers

    def test_each_secret_has_a_line_in_the_example(self) -> None:
        text = (DEPLOY / "compose.yaml").read_text()
        example = (DEPLOY / "compose.env.example").read_text()

        assert set(re.findall(r"\$\{(\w+):\?\}", text)) == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))

    def test_each_folder_and_service_that_is_named_exists(self) -> None:
        found = compose()
        services = found["services"]
        volumes = {one.partition(":")[0] for service in services.values() for one in service.get("volumes", [])}

        assert {name for service in services.values() for name in service.get("depends_on", [])} <= set(services)
        assert {name for name in volumes if not name.startswith(".")} == set(found["volumes"])
        assert all((DEPLOY / name).exists() for name in volumes if name.startswith("."))


def test_each_setting_of_a_file_is_one_that_the_server_reads() -> None:
    guide = (DEPLOY.parent / "docs" / "guide" / "server.md").read_text()
    settings = {*compose()["services"]["lakebed-1"]["environment"], *values()["environment"]}
    settings |= set(values()["secret"]["values"])

    # Of variables with one beginning, the guide's table writes it once.
    assert {name for name in settings if name not in guide and name.replace("LAKEBED_S3", "…") not in guide} == set()


class TestChart:
    def test_each_value_of_a_template_is_in_the_values(self) -> None:
        missing = []
        for file in sorted((CHART / "templates").iterdir()):
            for name in VALUE.findall(file.read_text()):
                found: Any = values()
                for part in name.split("."):
                    found = found.get(part) if isinstance(found, dict) else None
                if found is None:
                    missing.append(f"{file.name}: {name}")

        assert missing == []

    def test_each_value_is_used(self) -> None:
        used = {
            name.split(".")[0] for file in (CHART / "templates").iterdir() for name in VALUE.findall(file.read_text())
        }

        assert set(values()) == used

    @pytest.mark.parametrize("options", [[], ["serviceMonitor.enabled=true", "data.existingClaim=lake"]])
    def test_helm_renders_it(self, options: list[str]) -> None:
        named = [f"secret.values.{name}=x" for name in values()["secret"]["values"] if name != "LAKEBED_STORE_URI"]
        done = rendered(*named, "secret.values.LAKEBED_STORE_URI=postgres://x", *options)

        assert done.returncode == 0, done.stderr
        made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
        pod = made["Deployment"]["spec"]["template"]["spec"]
        parsed = arguments(pod["containers"][0]["args"])
        assert pod["terminationGracePeriodSeconds"] > seconds_of(parsed)
        assert made["Service"]["spec"]["selector"] == made["Deployment"]["spec"]["selector"]["matchLabels"]
        assert {"Secret", "PodDisruptionBudget"} <= set(made)
        assert ("ServiceMonitor" in made) == bool(options)
        assert {"name": "LAKEBED_AUDIT_STDOUT", "value": "1"} in pod["containers"][0]["env"]

    def test_a_digest_goes_before_the_tag_and_is_one(self) -> None:
        digest = "sha256:" + "0f" * 32
        schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["image"]["properties"]["digest"]
        template = (CHART / "templates" / "deployment.yaml").read_text()

        assert "{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:" in template
        assert [bool(re.search(schema["pattern"], text)) for text in ("", digest, "2.6", digest[:-1])] == [
            True, True, False, False
        ]  # fmt: skip

    def test_helm_refuses_it_without_secrets(self) -> None:
        done = rendered()

        assert done.returncode != 0
        assert "set secret.values.LAKEBED_" in done.stderr

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["environment.LAKEBED_STORE_URI=sqlite:///var/lib/lakebed/kv.db"], "pods cannot share a file"),
            (["environment.LAKEBED_STORE_URI=mem://"], "pods cannot share a file"),
            (["environment.LAKEBED_STORE_URI=SQLite:///var/lib/lakebed/kv.db"], "pods cannot share a file"),
            (["environment.LAKEBED_BLOCKSTORE=local"], "set data.existingClaim"),
            (["environment.LAKEBED_BLOCKSTORE="], "set data.existingClaim"),
            (["environment.LAKEBED_BLOCKSTORE=null"], "set data.existingClaim"),
            (["replica=3"], "replica"),
            (["replicas=three"], "replicas"),
            (["close=3"], "close"),
            (["service.type=ClusterIp"], "type"),
        ],
    )
    def test_helm_refuses_values_with_which_pods_would_not_serve(self, options: list[str], reason: str) -> None:
        done = rendered("secret.existing=lake", *options)

        assert done.returncode != 0
        assert reason in done.stderr

    def test_the_schema_has_each_value_and_a_grace_period_that_is_long_enough(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())["properties"]

        assert set(schema) == {*values(), "global"}
        assert schema["close"]["minimum"] > CLOSING_S
        for name, one in schema.items():
            assert not one.get("properties") or set(values()[name]) == set(one["properties"])

    @pytest.mark.parametrize("kubernetes", ["1.25", "1.37"])
    def test_the_interface_of_kubernetes_takes_what_helm_renders(self, kubernetes: str, tmp_path: Path) -> None:
        """Its own schemas, strictly: a field that it does not know is an error. It has none of the monitor."""
        texts = []
        for some in product(*OPTIONS):
            done = rendered(*chain.from_iterable(some), cluster=f"{kubernetes}.0")
            assert done.returncode == 0, done.stderr
            texts.append(done.stdout)
        made = [one for text in texts for one in yaml.safe_load_all(text) if one and one["kind"] != "ServiceMonitor"]
        (tmp_path / "made.yaml").write_text(yaml.safe_dump_all(made))
        validate = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", kubernetes, "made.yaml"]
        packages = str(python_packages("kubernetes-validate==1.37.0"))
        done = subprocess.run(
            validate, cwd=tmp_path, env={"PYTHONPATH": packages}, capture_output=True, text=True, check=False
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("passed") == len(made)


OPTIONS: list[list[list[str]]] = [
    [["secret.existing=lake"], [f"secret.values.{name}=postgres://x" for name in values()["secret"]["values"]]],
    [[], ["data.existingClaim=lake", "environment.LAKEBED_BLOCKSTORE=local"]],
    [[], ["podDisruptionBudget.enabled=false", "serviceMonitor.enabled=true", "service.type=LoadBalancer"]],
    [
        [],
        [
            "replicas=5",
            "workers=2",
            "podDisruptionBudget.maxUnavailable=20%",
            "imagePullSecrets[0].name=pull",
            "nodeSelector.disk=fast",
            "tolerations[0].key=lake",
            "tolerations[0].operator=Exists",
            "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=kubernetes.io/hostname",
            "environment.LAKEBED_PRESIGN=0",
        ],
    ],
]
"""The values to try, each with each of the others."""


def helm_program() -> str:
    """Return an installed Helm. LAKEBED_TEST_HELM=build has Go build it, once."""
    found = shutil.which("helm")
    if found is None and os.environ.get("LAKEBED_TEST_HELM") != "build":
        pytest.skip("helm is not installed. LAKEBED_TEST_HELM=build builds it")
    return found or str(go_program("helm.sh/helm/v3/cmd/helm", "v3.16.4", is_asked=True))


def rendered(*chosen: str, cluster: str = "1.30.0") -> subprocess.CompletedProcess[str]:
    helm = helm_program()
    # A Helm that was built from source takes itself to be on a very old cluster.
    command = [helm, "template", "lake", str(CHART), "--kube-version", cluster]
    return subprocess.run(
        [*command, *(word for one in chosen for word in ("--set", one))], capture_output=True, text=True, check=False
    )


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    for file in (DEPLOY / "systemd").iterdir():
        # It looks for the program, which lies elsewhere here.
        (tmp_path / file.name).write_text(file.read_text().replace("/opt/lakebed/bin/lakebed", "/bin/true"))
    units = sorted(str(file) for file in tmp_path.iterdir())
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)

    ours = [line for line in done.stderr.splitlines() if "lakebed" in line]
    assert (done.returncode, ours) == (0, [])


def test_systemd_finds_the_service_well_shut_in(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    shutil.copy(DEPLOY / "systemd" / "lakebed.service", tmp_path)
    # Its figure goes from 0 to 10: below 2 is "OK". The threshold is in tenths.
    weigh = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(tmp_path / "lakebed.service")]
    done = subprocess.run(weigh, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot read a file")

    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_image_is_of_an_ordinary_user_with_a_probe() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]

    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "/_health" in last
    assert {line.split()[1] for line in text.splitlines() if line.startswith("FROM ")} == {"${PYTHON_IMAGE}"}


_OURS = {"lakebed"}
_PINNED = r"([\w./-]+:[\w.-]+)@sha256:[0-9a-f]{64}"
_REPLACEABLE = re.compile(rf"\$\{{(\w+_IMAGE):-{_PINNED}\}}")


def test_every_image_of_others_is_pinned_by_digest_and_can_be_replaced_without_a_change_of_the_file() -> None:
    example = (DEPLOY / "compose.env.example").read_text()
    images = {service["image"] for service in compose()["services"].values()} - _OURS
    base = re.findall(rf"^ARG PYTHON_IMAGE={_PINNED}$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert len(images) == 3
    for image in images:
        replaceable = _REPLACEABLE.fullmatch(image)
        assert replaceable, f"{image} is not pinned"
        assert not replaceable[2].endswith(":latest")
        assert f"# {replaceable[1]}={replaceable[2]}@sha256:..." in example
    assert base == ["python:3.13-slim-bookworm"]


def test_the_audit_log_outlives_its_container() -> None:
    assert compose()["services"]["lakebed-1"]["environment"]["LAKEBED_AUDIT_STDOUT"] == "1"
    assert values()["environment"]["LAKEBED_AUDIT_STDOUT"] == "1"


def test_the_image_gets_every_file_that_it_copies() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for word in line.split()]
    sent = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)

    assert sorted(copied) == sorted(sent)
    assert all((DEPLOY.parent / name).exists() for name in copied)
