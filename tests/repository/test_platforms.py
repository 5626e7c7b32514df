"""What lies in deploy/ for the platforms says what they read, what this program does, and the same everywhere."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from pydantic import JsonValue, TypeAdapter
from redis import Redis
from redis.exceptions import NoPermissionError
from support.web.markdown_pages import anchors
from support.worker.command_line import named_command

from preflight.redis.server.embedded import redis_server
from worker.config.settings import Settings
from worker.web.auth import PROTECTED_PATHS
from worker.web.listing.overview import Overview
from worker.web.routes.service import Snapshot, exposition

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PROMETHEUS = DEPLOY / "prometheus"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
VERSIONS = ("1.27", "1.37")
"""Of Kubernetes: the oldest with all of it, and the newest whose schemas are installed."""
KEDA = Path(__file__).parent / "schemas" / "keda.json"
"""Its origin is in the file."""
LENGTH = """
local lengths = { zset = "zcard", set = "scard", list = "llen", hash = "hlen", none = "llen" }
return redis.call(lengths[redis.call("type", KEYS[1]).ok], KEYS[1])
"""
"""What KEDA's scaler asks Redis."""
DASHBOARD = DEPLOY / "grafana" / "preflight.json"
ROLES = ("worker", "web")

RAILWAY: Mapping[str, type] = {
    "startCommand": str, "healthcheckPath": str, "healthcheckTimeout": int, "restartPolicyType": str,
    "restartPolicyMaxRetries": int, "drainingSeconds": int, "overlapSeconds": int,
}  # fmt: skip
"""Names and types of Railway's reference, as far as they are used. Its example writes seconds as strings; its parser
refuses these."""
FLY = {
    "": {"app", "primary_region", "kill_signal", "kill_timeout", "build", "processes", "mounts", "http_service", "vm",
         "restart"},
    "build": {"dockerfile"},
    "mounts": {"source", "destination", "initial_size", "processes"},
    "http_service": {"internal_port", "force_https", "auto_stop_machines", "auto_start_machines", "processes",
                     "concurrency", "checks"},
    "vm": {"size", "memory", "processes"},
    "restart": {"policy", "retries"},
}  # fmt: skip
"""Names of Fly's reference, as far as they are used."""

Tree = dict[str, JsonValue]


def at(tree: JsonValue, *path: str | int) -> JsonValue:
    """Return what lies at a path; None where there is nothing."""
    for key in path:
        if isinstance(tree, dict) and isinstance(key, str):
            tree = tree.get(key)
        elif isinstance(tree, list) and isinstance(key, int):
            tree = tree[key]
        else:
            return None
    return tree


def items(tree: JsonValue, *path: str | int) -> Sequence[JsonValue]:
    """Return the list at a path; empty where there is none."""
    found = at(tree, *path)
    return found if isinstance(found, list) else []


@cache
def documents(path: Path) -> Sequence[Tree]:
    """Return the documents of a YAML file."""
    return TypeAdapter(list[Tree]).validate_python(list(yaml.safe_load_all(path.read_text())))


def railway(role: str) -> Tree:
    return TypeAdapter(Tree).validate_json((DEPLOY / "railway" / f"{role}.json").read_bytes())


def fly() -> Tree:
    return TypeAdapter(Tree).validate_python(tomllib.loads((DEPLOY / "fly.toml").read_text()))


def resources(kind: str | None = None) -> list[Tree]:
    """Return what the manifests make, of one kind or all."""
    found = [document for path in MANIFESTS for document in documents(path)]
    return [one for one in found if kind in (None, one["kind"])]


def workloads() -> Mapping[str, JsonValue]:
    """Return role -> pod of what runs in Kubernetes."""
    found = [*resources("Deployment"), *resources("StatefulSet")]
    return {str(at(one, "metadata", "name")): at(one, "spec", "template") for one in found}


def start_commands() -> Iterator[tuple[str, str, list[str]]]:
    """Yield platform, role and the whole command of everything that is started."""
    (words,) = re.findall(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    entry_point = TypeAdapter(list[str]).validate_json(words)
    procfile = dict(line.split(": ", 1) for line in (DEPLOY / "Procfile").read_text().splitlines())
    for role in ROLES:
        yield "railway", role, shlex.split(str(at(railway(role), "deploy", "startCommand")))
        yield "fly", role, [*entry_point, *shlex.split(str(at(fly(), "processes", role)))]
        yield "procfile", role, shlex.split(procfile[role])
        (start,) = re.findall(r"^CMD exec (.+)$", (DEPLOY / "heroku" / f"Dockerfile.{role}").read_text(), re.MULTILINE)
        yield "heroku", role, shlex.split(start)
        arguments = items(workloads()[role], "spec", "containers", 0, "args")
        yield "kubernetes", role, [*entry_point, *map(str, arguments)]


@pytest.mark.parametrize(("platform", "role", "words"), list(start_commands()))
def test_a_role_is_started_by_a_command_of_this_program(platform: str, role: str, words: list[str]) -> None:
    """Spelt out where it replaces the image's entry point; the web service listens on IPv6, too, where it is asked."""
    assert words[0] == "preflight"
    with named_command(words[1]).make_context(words[1], list(words[2:])) as context:
        given = context.params
    if role == "worker":
        assert words[1:] == ["worker"]
        return
    assert given["host"] == "::"
    asked = {
        "fly": at(fly(), "http_service", "internal_port"),
        "kubernetes": at(workloads()["web"], "spec", "containers", 0, "ports", 0, "containerPort"),
    }
    assert given["port"] == asked.get(platform), "elsewhere the platform sets PORT"


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_a_worker_is_asked_for_a_sign_of_life(probe: str) -> None:
    """By a command of this program, in the container itself: a worker answers no requests."""
    words = items(workloads()["worker"], "spec", "containers", 0, probe, "exec", "command")
    assert [words[0], len(words)] == ["preflight", 2]
    assert named_command(str(words[1])).name == words[1]


def test_a_worker_has_the_same_time_to_save_everywhere() -> None:
    """That of docker-compose.yml, and SIGTERM to begin with."""
    compose = documents(ROOT / "docker-compose.yml")[0]
    grace = at(compose, "services", "worker", "stop_grace_period")
    assert isinstance(grace, str)
    seconds = int(grace.removesuffix("s"))
    assert at(railway("worker"), "deploy", "drainingSeconds") == seconds
    assert (fly()["kill_signal"], fly()["kill_timeout"]) == ("SIGTERM", seconds)
    assert at(workloads()["worker"], "spec", "terminationGracePeriodSeconds") == seconds


def test_platforms_ask_for_paths_that_need_no_token() -> None:
    """They have none to send."""
    described = TypeAdapter(Tree).validate_json((ROOT / "docs" / "schemas" / "openapi.json").read_bytes())
    routes = described["paths"]
    assert isinstance(routes, dict)
    pod = workloads()["web"]
    asked = [
        at(railway("web"), "deploy", "healthcheckPath"),
        *(at(check, "path") for check in items(fly(), "http_service", "checks")),
        *(at(pod, "spec", "containers", 0, f"{probe}Probe", "httpGet", "path") for probe in ("liveness", "readiness")),
    ]
    for path in asked:
        assert isinstance(path, str)
        assert path in routes
        assert not path.startswith(PROTECTED_PATHS)


@pytest.mark.parametrize("role", ROLES)
def test_railway_files_use_its_fields(role: str) -> None:
    """Every field is one of its reference and of the type that its parser takes; it is restarted when it fails."""
    config = railway(role)
    assert set(config) == {"$schema", "build", "deploy"}
    dockerfile = at(config, "build", "dockerfilePath")
    assert config["build"] == {"builder": "DOCKERFILE", "dockerfilePath": dockerfile}
    assert (ROOT / str(dockerfile)).is_file()
    deploy = config["deploy"]
    assert isinstance(deploy, dict)
    assert {name: type(value) for name, value in deploy.items()} == {name: RAILWAY[name] for name in deploy}
    assert deploy["restartPolicyType"] == "ON_FAILURE"
    assert ("healthcheckPath" in deploy) == (role == "web"), "a worker answers no requests"


def test_fly_file_uses_its_fields() -> None:
    """Every name is one of its reference, every process is one that is there, and the Dockerfile is found."""
    config = fly()
    for section, names in FLY.items():
        part = config[section] if section else config
        for table in part if isinstance(part, list) else [part]:
            assert isinstance(table, dict)
            assert set(table) <= names, section
            assert set(map(str, items(table, "processes"))) <= set(ROLES), section
    assert (DEPLOY / str(at(config, "build", "dockerfile"))).resolve() == ROOT / "Dockerfile"
    assert items(config, "http_service", "processes") == ["web"]
    assert [at(mount, "processes") for mount in items(config, "mounts")] == [["worker"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path, version: str) -> None:
    """By its own schemas, in which no field may be unknown."""
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def keda() -> Sequence[Tree]:
    """Return what scales the workers; a cluster without KEDA refuses it, so it is not in the kustomization."""
    return documents(KUBERNETES / "keda" / "scaledobject.yaml")


def refusals(document: JsonValue) -> list[str]:
    """Return what KEDA's custom resource definitions have against a document; unknown fields, too."""
    kinds = at(TypeAdapter(Tree).validate_json(KEDA.read_bytes()), "$defs")
    assert isinstance(kinds, dict)
    validator = Draft202012Validator({"$ref": f"#/$defs/{at(document, 'kind')}", "$defs": kinds})
    return [error.message for error in validator.iter_errors(document)]


def test_keda_knows_every_field() -> None:
    assert [refusals(document) for document in keda()] == [[], []]


def test_workers_are_scaled_by_the_jobs_that_wait_and_run() -> None:
    """Of the queue's keys, by a formula of the triggers that there are, for the StatefulSet that there is."""
    scaled, access = keda()
    (stateful,) = resources("StatefulSet")
    target = {name: at(stateful, name) for name in ("apiVersion", "kind")}
    assert at(scaled, "spec", "scaleTargetRef") == {**target, "name": at(stateful, "metadata", "name")}
    queue = Settings.model_fields["queue"].default
    triggers = items(scaled, "spec", "triggers")
    assert [at(one, "metadata", "listName") for one in triggers] == [f"rq:queue:{queue}", f"rq:wip:{queue}"]
    formula = str(at(scaled, "spec", "advanced", "scalingModifiers", "formula"))
    assert re.findall(r"\w+", formula) == [at(one, "name") for one in triggers]
    assert {at(one, "authenticationRef", "name") for one in triggers} == {at(access, "metadata", "name")}


def test_a_user_for_keda_may_count_and_nothing_else() -> None:
    """With the rights that its file names, in a real Redis, by a script as the scaler's."""
    text = (KUBERNETES / "keda" / "scaledobject.yaml").read_text()
    (rights,) = re.findall(r"user keda on >\.\.\. (.+\n#.+)\n", text)
    with redis_server() as url:
        owner = Redis.from_url(url)
        owner.execute_command("ACL", "SETUSER", "keda", "reset", "on", ">secret", *rights.replace("#", "").split())
        owner.rpush("rq:queue:preflight", "a", "b")
        owner.zadd("rq:wip:preflight", {"c": 1})
        scaler = Redis.from_url(url, username="keda", password="secret")  # noqa: S106 - of this test
        assert [scaler.eval(LENGTH, 1, f"rq:{name}:preflight") for name in ("queue", "wip")] == [2, 1]
        for command in (["LPOP", "rq:queue:preflight"], ["GET", "rq:job:a"], ["DEL", "rq:wip:preflight"]):
            with pytest.raises(NoPermissionError):
                scaler.execute_command(*command)


def test_workers_of_a_group_reach_each_other_and_nobody_else_does() -> None:
    """The ports that the kernel chooses from are those that the policy opens, from workers to workers."""
    sysctls = items(workloads()["worker"], "spec", "securityContext", "sysctls")
    ports = {str(at(one, "name")): str(at(one, "value")) for one in sysctls}["net.ipv4.ip_local_port_range"].split()
    (policy,) = [one for one in resources("NetworkPolicy") if at(one, "metadata", "name") == "worker-group"]
    workers = at(policy, "spec", "podSelector")
    opened = [{"port": int(ports[0]), "endPort": int(ports[1]), "protocol": "TCP"}]
    assert items(policy, "spec", "ingress") == [{"from": [{"podSelector": workers}], "ports": opened}]
    assert items(policy, "spec", "egress") == [{"to": [{"podSelector": workers}], "ports": opened}]


def test_groups_are_off_where_the_network_may_not_be_closed() -> None:
    """In Kubernetes a word turns them on, and each pod gives its own address; a compose project has its own network."""
    variables = {at(one, "name"): one for one in items(workloads()["worker"], "spec", "containers", 0, "env")}
    assert at(variables["PREFLIGHT_GROUP"], "value") == Settings.model_fields["group"].default == "off"
    assert at(variables["PREFLIGHT_ADVERTISE_HOST"], "valueFrom") == {"fieldRef": {"fieldPath": "status.podIP"}}
    compose = documents(ROOT / "docker-compose.yml")[0]
    assert at(compose, "services", "worker", "environment", "PREFLIGHT_GROUP") == "${PREFLIGHT_GROUP:-on}"


def test_uploads_have_a_volume_without_models() -> None:
    """Web service and worker share it, and the web service only reads imported data."""
    compose = documents(ROOT / "docker-compose.yml")[0]
    for role in ROLES:
        mounts = [str(mount).rsplit(":", 2) for mount in items(compose, "services", role, "volumes")]
        assert "uploads:/data/uploads" in items(compose, "services", role, "volumes")
        assert at(compose, "services", role, "environment", "PREFLIGHT_UPLOAD_DIR") == "/data/uploads"
        data = [mount for mount in mounts if "/data/datasets" in mount]
        assert [mount[-1] == "ro" for mount in data] == [role == "web"]
    assert re.search(r"install -d .*?/data/uploads", (ROOT / "Dockerfile").read_text(), re.DOTALL)


def test_kustomize_takes_all_of_it() -> None:
    """Each file, into the namespace that they make, with an image from somewhere."""
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    (namespace,) = resources("Namespace")
    assert items(kustomization, "resources") == [path.name for path in MANIFESTS]
    assert kustomization["namespace"] == at(namespace, "metadata", "name")
    images = {at(pod, "spec", "containers", 0, "image") for pod in workloads().values()}
    assert images == {at(image, "name") for image in items(kustomization, "images")}
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: kustomization.yaml was not rendered by it")
    rendered = subprocess.run([kubectl, "kustomize", KUBERNETES], capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr
    made = TypeAdapter(list[Tree]).validate_python(list(yaml.safe_load_all(rendered.stdout)))
    assert len(made) == len(resources())


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_no_right_that_it_does_not_need(role: str) -> None:
    """As the namespace's `restricted` demands, on a read-only disk, as the image's user."""
    pod = workloads()[role]
    (container,) = items(pod, "spec", "containers")
    (uid,) = re.findall(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = at(pod, "spec", "securityContext")
    assert isinstance(context, dict)
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == int(uid)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert at(pod, "spec", "automountServiceAccountToken") is False
    assert at(pod, "spec", "enableServiceLinks") is False
    assert at(container, "securityContext") == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert at(container, "resources", "requests") == at(container, "resources", "limits")
    assert "/tmp" in [at(mount, "mountPath") for mount in items(container, "volumeMounts")]  # noqa: S108 - in the pod
    mounted = {at(mount, "name") for mount in items(container, "volumeMounts")}
    (stateful,) = resources("StatefulSet")
    claims = [at(claim, "metadata", "name") for claim in items(stateful, "spec", "volumeClaimTemplates")]
    there = {at(volume, "name") for volume in items(pod, "spec", "volumes")}
    assert mounted == there | set(claims if role == "worker" else [])


def test_pods_get_their_secrets_and_no_others() -> None:
    """From one Secret, under names that this program reads; the worker needs no token."""
    needed = {"worker": ["REDIS_URL"], "web": ["REDIS_URL", "PREFLIGHT_API_TOKEN"]}
    for role, names in needed.items():
        variables = items(workloads()[role], "spec", "containers", 0, "env")
        found = {at(variable, "name"): at(variable, "valueFrom", "secretKeyRef") for variable in variables}
        references = {name: reference for name, reference in found.items() if reference is not None}
        store = {"PREFLIGHT_DATASET_URL": {"name": "preflight", "key": "PREFLIGHT_DATASET_URL", "optional": True}}
        assert references == {name: {"name": "preflight", "key": name} for name in names} | store
    assert "api_token" in Settings.model_fields


def test_every_selector_finds_the_pods_it_means() -> None:
    """Services, budgets, workloads and network policies: a label that no pod has selects nothing, and says nothing."""
    labels = {role: at(pod, "metadata", "labels") for role, pod in workloads().items()}
    for one in (*resources("Deployment"), *resources("StatefulSet"), *resources("PodDisruptionBudget")):
        assert at(one, "spec", "selector", "matchLabels") == labels[str(at(one, "metadata", "name"))]
    for service in resources("Service"):
        assert at(service, "spec", "selector") == labels[str(at(service, "metadata", "name"))]
    for policy in resources("NetworkPolicy"):
        wanted = at(policy, "spec", "podSelector", "matchLabels")
        for role in ROLES if isinstance(wanted, dict) else ():
            mine = labels[role]
            assert isinstance(mine, dict) and isinstance(wanted, dict)
            meant = role in str(at(policy, "metadata", "name")) or at(policy, "metadata", "name") == "redis"
            assert (wanted.items() <= mine.items()) == meant, (policy, role)


@pytest.fixture(scope="module")
def exported() -> Mapping[str, frozenset[str]]:
    """Return name -> labels of every series that a scrape may show, by the code that writes it."""
    overview = Overview(queue="q", depth=1, running=0, workers=(), jobs_per_hour=1.0)
    snapshot = Snapshot(overview, totals={}, running=(), viewers=0)
    families = text_string_to_metric_families(exposition(snapshot).decode())
    return {sample.name: frozenset(sample.labels) for family in families for sample in family.samples}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which(ROOT / "build" / "promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus): rules and dashboard were not checked by it")
    return found


def alerts() -> Sequence[JsonValue]:
    (rules,) = documents(PROMETHEUS / "alerts.yml")
    return items(rules, "groups", 0, "rules")


def panels() -> Sequence[JsonValue]:
    return items(TypeAdapter(Tree).validate_json(DASHBOARD.read_bytes()), "panels")


def drawn() -> list[str]:
    """Return the expressions of the dashboard."""
    return [str(at(target, "expr")) for panel in panels() for target in items(panel, "targets")]


def test_alerts_and_dashboard_ask_for_what_there_is(exported: Mapping[str, frozenset[str]]) -> None:
    """A name that is not exported matches nothing for ever."""
    asked = [*(str(at(alert, "expr")) for alert in alerts()), *drawn()]
    assert {name for expression in asked for name in re.findall(r"\bpreflight_\w+", expression)} <= set(exported)
    assert set(exported) - {name for text in drawn() for name in re.findall(r"\bpreflight_\w+", text)} == set()


def test_alerts_are_tried_on_series_as_they_are(exported: Mapping[str, frozenset[str]]) -> None:
    """alerts_test.yml has the names and labels of the code, and what Prometheus adds."""
    (tried,) = documents(PROMETHEUS / "alerts_test.yml")
    known = {**exported, "up": frozenset({"job"})}
    for series in (at(one, "series") for test in items(tried, "tests") for one in items(test, "input_series")):
        name, _, labels = str(series).partition("{")
        assert set(re.findall(r"(\w+)=", labels)) == known[name] | {"instance"}, series
    fired = {at(rule, "alertname") for test in items(tried, "tests") for rule in items(test, "alert_rule_test")}
    assert fired == {at(alert, "alert") for alert in alerts()}


def test_each_alert_leads_to_the_runbook() -> None:
    for alert in alerts():
        page, _, anchor = str(at(alert, "annotations", "runbook")).partition("#")
        assert anchor in anchors(ROOT / page), alert


def test_prometheus_takes_the_documented_commands(promtool: str, tmp_path: Path) -> None:
    """Configuration, rules and their tests, as deploy/README.md has them, the token's file beside them."""
    shutil.copytree(PROMETHEUS, tmp_path / "deploy" / "prometheus")
    (tmp_path / "deploy" / "prometheus" / "token").write_text("a-token-of-enough-letters")
    documented = re.findall(r"^    (promtool .+)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    kinds = [" ".join(command.split()[1:3]) for command in documented]
    assert kinds == ["check config", "check rules", "test rules"]
    for command in documented:
        done = subprocess.run([promtool, *shlex.split(command)[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_token_does_not_get_into_the_repository() -> None:
    """It lies beside prometheus.yml, where its users put it."""
    (config,) = documents(PROMETHEUS / "prometheus.yml")
    name = at(config, "scrape_configs", 0, "authorization", "credentials_file")
    assert f"/deploy/prometheus/{name}" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_documentation_names_what_lies_in_deploy() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or path.name in page, path.name


def test_the_image_gets_all_packages_and_nothing_that_is_held_back() -> None:
    """The wheel's packages are copied, and `.dockerignore`, which lets nothing else through, lets them through."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    copied = {source.rstrip("*") for sources in copies for source in sources}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages | {"client"} <= copied
    assert {source for source in copied if source not in let_through} <= {"client/pyproject.toml"}


def test_worker_and_client_are_of_one_version() -> None:
    """The worker takes its own from client/pyproject.toml, and asks for exactly that client."""
    worker, client = (tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"] for path in ("", "client"))
    assert worker["dynamic"] == ["version"]
    assert worker["dependencies"] == [f"{client['name']}=={client['version']}"]
