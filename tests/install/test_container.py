"""Files of `deploy` pass their linters, and name existing files, extras and options.

No image is built here; a bundle's server is run as the image runs it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kvcast.cli.arguments import Parser
from server.serving import command as serving

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text("utf-8")
MANIFEST = (ROOT / "deploy/kubernetes.yaml").read_text("utf-8")
README = (ROOT / "deploy/README.md").read_text("utf-8")
HADOLINT = Path(sys.executable).with_name("hadolint")
RESOURCES = {resource["kind"]: resource for resource in yaml.safe_load_all(MANIFEST)}
POD = RESOURCES["Deployment"]["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def instructions() -> Iterator[tuple[str, str, str]]:
    stage = ""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    for line in filter(None, joined.splitlines()):
        instruction, words = line.split(maxsplit=1)
        if instruction == "FROM":
            stage = words.split(" AS ")[1]
        yield stage, instruction, words


def only(instruction: str, stage: str = "runtime") -> str:
    [value] = [
        words for where, what, words in instructions() if (where, what) == (stage, instruction)
    ]
    return value


def copied() -> list[str]:
    copies = [words.split() for _, what, words in instructions() if what == "COPY"]
    return [name for words in copies if not words[0].startswith("--from") for name in words[:-1]]


def complaints(dockerfile: str) -> str:
    words = [HADOLINT, "--no-color", "--failure-threshold", "style", "-"]
    done = subprocess.run(words, input=dockerfile, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(done.stdout), done.stderr
    return done.stdout


def validate(manifest: str) -> None:
    for resource in yaml.safe_load_all(manifest):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def parsed(command: str, *words: str) -> Any:
    parser = Parser()
    import_module(f"kvcast.cli.{command}").add_arguments(parser)
    return parser.parse_args(words)


needs_hadolint = pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")


@needs_hadolint
def test_hadolint_finds_nothing() -> None:
    assert complaints(DOCKERFILE) == ""


@needs_hadolint
@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("FROM python:3.13-slim-trixie AS wheel", "FROM python AS wheel", "DL3006"),
        ("USER 10001:10001", "USER root", "DL3002"),
    ],
)
def test_hadolint_finds_what_is_wrong(good: str, bad: str, rule: str) -> None:
    assert good in DOCKERFILE
    assert rule in complaints(DOCKERFILE.replace(good, bad))


def test_kubernetes_takes_the_manifest() -> None:
    validate(MANIFEST)
    assert set(RESOURCES) == {
        *("Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget")
    }


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("periodSeconds", "periodSecond"),
        ("  selector:\n    matchLabels", "  selectors:\n    matchLabels"),
    ],
)
def test_kubernetes_refuses_what_is_wrong(good: str, bad: str) -> None:
    assert good in MANIFEST
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(MANIFEST.replace(good, bad))


def test_the_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    arguments = dict(
        words.split("=", 1) for _, what, words in instructions() if what == "ARG" and "=" in words
    )
    asked = [
        extra.replace("${", "").replace("}", "")
        for extras in re.findall(r"kvcast\[(.+?)\]", DOCKERFILE)
        for extra in extras.split(",")
    ]
    assert asked
    for extra in asked:
        for name in arguments.get(extra, extra).split(","):
            assert name in project["optional-dependencies"]


def test_copied_files_exist_and_are_not_ignored() -> None:
    patterns = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in patterns
    taken = {line[1:] for line in patterns if line.startswith("!")}
    assert set(copied()) == taken
    assert all((ROOT / name).exists() for name in taken)


def test_every_build_argument_of_the_readme_is_one() -> None:
    known = {words.split("=")[0] for _, what, words in instructions() if what == "ARG"}
    named = set(re.findall(r"--build-arg (\w+)=", README))
    assert named
    assert named <= known
    stages = {stage for stage, *_ in instructions()}
    assert set(re.findall(r"--target ([\w-]+)", README + DOCKERFILE)) <= stages


def test_the_commands_are_kvcasts() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["/usr/bin/python3", "-m", "kvcast"]
    for words in (json.loads(only("CMD")), CONTAINER["args"]):
        args = parsed(*words)
        assert (args.host, args.port) == ("0.0.0.0", 8000)
        assert args.models == ["/models/demo"]
    exports = [words for where, what, words in instructions() if (where, what) == ("export", "RUN")]
    line = exports[-1].replace(" ${EXPORT_OPTIONS}", "").replace("${MODEL}", "demo")
    program, *words = shlex.split(line)
    assert Path(program).name == "kvcast"
    parsed(*words)


def test_a_pod_has_time_to_drain() -> None:
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = parsed(*CONTAINER["args"]).drain
    assert POD["spec"]["terminationGracePeriodSeconds"] > pause + drain


def test_a_pod_may_do_no_more_than_it_needs() -> None:
    user, group = map(int, only("USER").split(":"))
    context = POD["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (user, group)
    assert user
    assert context["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    written = [volume["mountPath"] for volume in CONTAINER["volumeMounts"]]
    cache = re.search(r"KVCAST_CACHE=(\S+)", DOCKERFILE)[1]
    assert any(Path(cache).is_relative_to(path) for path in written)


def test_everything_points_at_the_deployment() -> None:
    labels = POD["metadata"]["labels"].items()
    service, budget = RESOURCES["Service"]["spec"], RESOURCES["PodDisruptionBudget"]["spec"]
    for selector in (
        RESOURCES["Deployment"]["spec"]["selector"]["matchLabels"],
        service["selector"],
        budget["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    scaled = RESOURCES["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled["name"] == RESOURCES["Deployment"]["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == int(only("EXPOSE")) == 8000
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in PROBES} <= set(ports)


def test_the_images_healthcheck_works(tmp_path: Path) -> None:
    check = json.loads(only("HEALTHCHECK").split("CMD ")[1])
    assert check[0] == "/usr/bin/python3"
    words = json.loads(only("CMD"))
    serve = [*words[2 : words.index("--port")], "demo-t5", "--threads", "1"]
    environment = {"KVCAST_API_KEY": "secret"}
    with serving(*serve, environment=environment) as running:
        port = running.url.rsplit(":", 1)[1]
        healthy = [sys.executable, *(word.replace(":8000/", f":{port}/") for word in check[1:])]
        assert subprocess.run(healthy, capture_output=True, check=False).returncode == 0
        for probe in PROBES:
            path = CONTAINER[probe]["httpGet"]["path"]
            probed = [word.replace("/health", path) for word in healthy]
            assert subprocess.run(probed, capture_output=True, check=False).returncode == 0
    assert subprocess.run(healthy, capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_a_wheel_is_built_from_the_copied_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        target, original = source / name, ROOT / name
        shutil.copytree(original, target) if original.is_dir() else shutil.copy(original, target)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source]
    # Compiling proves nothing more: a wheel without the library would pass as well.
    pure = os.environ | {"KVCAST_NATIVE": "none"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=pure)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("kvcast-*.whl"))
