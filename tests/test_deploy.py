"""Manifests, unit and image agree with one another and with the server: routes, ports, times, flags and folders."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyllm import cli
from pyllm.config.api_keys import VARIABLE, ApiKey, KeyRing
from pyllm.config.option_reading import config_part, engine_config
from pyllm.config.server_settings import ServerConfig
from pyllm.flags.settings_flags import given_settings
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.supervision.flight_recorder import KEEP, MAX_BYTES
from pyllm.supervision.restarts import WINDOW
from pyllm.supervision.server_processes import STOP_GRACE
from tests.frontend.serving import answering, in_process
from tests.frontend.text import tiny_tokenizers
from tests.plain_yaml import read_yaml
from tests.services import service_program

FOLDER = Path(__file__).parents[1] / "deploy"
DEPLOYMENT = read_yaml((FOLDER / "deployment.yaml").read_text())["spec"]
POD = DEPLOYMENT["template"]["spec"]
(CONTAINER,) = POD["containers"]
PROBES = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
UNIT = FOLDER / "systemd/pyllm.service"
DOCKERFILE = re.sub(r" *\\\n *", " ", (FOLDER.parent / "Dockerfile").read_text())
IMAGE = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]  # the last stage, a line an instruction


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return tiny_tokenizers.load(tiny_tokenizers.byte_level(), tmp_path)


def server_config(command: Sequence[str] = (*CONTAINER["command"], *CONTAINER["args"])) -> ServerConfig:
    """What a command line amounts to, the container's unless told; a flag that there is not would end the test."""
    _, name, *arguments = command
    options = cli.make_parser(name).parse_args(arguments)
    engine_config(given_settings(options))
    return config_part(ServerConfig, given_settings(options, ServerConfig))


def unit_settings() -> dict[str, str]:
    """Those of the unit's sections, of which no two have the same."""
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    settings = dict(line.split("=", 1) for line in lines)
    assert len(settings) == len(lines)
    return settings


def instruction(name: str) -> str:
    """The one of this name in the image's last stage."""
    (value,) = re.findall(rf"^{name} (.+)$", IMAGE, re.MULTILINE)
    return str(value)


def flag(name: str, arguments: Sequence[str] = tuple(CONTAINER["args"])) -> str:
    (value,) = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{name}=")]
    return str(value)


def patience(probe: dict[str, Any]) -> int:
    """Seconds after which a probe that always fails has an effect."""
    return int(probe["periodSeconds"] * probe["failureThreshold"])


async def test_every_probe_asks_for_a_route_and_needs_no_key(tokenizer: Tokenizer) -> None:
    keys = KeyRing([ApiKey(name="team", sha256="0" * 64)])
    async with in_process(answering(tokenizer, "x"), tokenizer, keys=keys) as frontend:
        assert (await frontend.http.get("/v1/models")).status_code == 401
        paths = {name: probe["httpGet"]["path"] for name, probe in PROBES.items()}
        answers = {name: (await frontend.http.get(path)).status_code for name, path in paths.items()}
        assert answers == dict.fromkeys(PROBES, 200)
        frontend.state.draining = True
        answers = {name: (await frontend.http.get(path)).status_code for name, path in paths.items()}
        assert answers == {"startup": 503, "readiness": 503, "liveness": 200}


def test_ports_and_names_agree() -> None:
    config = server_config()
    (port,) = CONTAINER["ports"]
    assert (config.host, config.port) == ("0.0.0.0", port["containerPort"])
    service = read_yaml((FOLDER / "service.yaml").read_text())
    (served,) = service["spec"]["ports"]
    assert {served["targetPort"], *(probe["httpGet"]["port"] for probe in PROBES.values())} == {port["name"]}
    budget = read_yaml((FOLDER / "disruption-budget.yaml").read_text())
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    selectors = DEPLOYMENT["selector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"]
    assert (labels, *selectors) == (service["spec"]["selector"],) * 3
    kustomization = read_yaml((FOLDER / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {file.name for file in FOLDER.glob("*.yaml")}


def test_flags_say_what_the_server_does_anyway() -> None:
    """Only so that who changes them sees the times that depend on them."""
    config, default = server_config(), ServerConfig()
    assert (config.shutdown_timeout, config.ready_timeout) == (default.shutdown_timeout, default.ready_timeout)


def test_a_server_has_the_time_to_end_in_order() -> None:
    config = server_config()
    groups = 3 if config.api_server_count == 1 else 4  # API processes, what they share, the core, its fork server
    longest = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"] + groups * (config.shutdown_timeout + STOP_GRACE)
    assert longest < POD["terminationGracePeriodSeconds"]


def test_a_server_has_the_time_to_start() -> None:
    """And ends by itself, with its reason, before the probe ends it without one."""
    assert server_config().ready_timeout < patience(PROBES["startup"]) < DEPLOYMENT["progressDeadlineSeconds"]


def test_a_server_that_recovers_is_left_alone() -> None:
    """Within this window it is well again or has given up and ended by itself; the last death takes time, too."""
    assert patience(PROBES["liveness"]) >= 1.5 * WINDOW


def test_who_is_not_ready_is_seen_before_it_is_told_to_end() -> None:
    assert patience(PROBES["readiness"]) < CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]


@pytest.mark.services
def test_systemd_agrees_with_the_unit(tmp_path: Path) -> None:
    """But for the program, which is not where the unit says on this machine."""
    text = UNIT.read_text().replace("/opt/pyllm/bin/pyllm", sys.executable)
    path = tmp_path / "pyllm.service"
    path.write_text(text)
    command = [service_program("systemd-analyze"), "verify", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    path.write_text(text.replace("KillMode=", "KillMod="))
    assert "KillMod" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_the_unit_starts_the_server_and_leaves_it_the_time_to_end_in_order() -> None:
    settings = unit_settings()
    command = shlex.split(settings["ExecStart"])
    config = server_config([argument for argument in command if not argument.startswith("--config=")])
    assert settings["KillMode"] == "mixed"
    assert 4 * (config.shutdown_timeout + STOP_GRACE) < int(settings["TimeoutStopSec"])
    written = [flag("flight-recorder-dir", command), *re.findall(r"=(/\S+)", settings["Environment"])]
    folders = {f"/run/{settings['RuntimeDirectory']}", f"/var/cache/{settings['CacheDirectory']}"}
    folders |= {f"/var/lib/{settings['StateDirectory']}"}
    assert len(written) == 4
    assert all({path, *map(str, Path(path).parents)} & folders for path in written)


def test_the_image_starts_the_server_as_the_manifests_do() -> None:
    entry, arguments = json.loads(instruction("ENTRYPOINT")), json.loads(instruction("CMD"))
    assert entry == ["tini", "--", "pyllm"]
    config, theirs = server_config(["pyllm", *arguments]), server_config()
    assert (config.host, config.port) == (theirs.host, theirs.port)
    assert flag("flight-recorder-dir", arguments) == flag("flight-recorder-dir")
    assert instruction("EXPOSE") == str(config.port)
    context = POD["securityContext"]
    user = f"{context['runAsUser']}:{context['runAsGroup']}"
    assert instruction("USER") == user
    environment = dict(variable.split("=") for variable in instruction("ENV").split())
    assert environment.pop("PATH").startswith("/opt/pyllm/bin:")
    assert environment.items() < {variable["name"]: variable.get("value") for variable in CONTAINER["env"]}.items()
    assert f"install -d -o {user.replace(':', ' -g ')} /run/pyllm /var/lib/pyllm" in instruction("RUN")


def test_the_image_is_healthy_while_the_liveness_probe_is_content() -> None:
    check, probe = instruction("HEALTHCHECK"), PROBES["liveness"]
    options = dict(re.findall(r"--([\w-]+)=(\w+)", check))
    assert options["interval"] == f"{probe['periodSeconds']}s"
    assert options["timeout"] == f"{probe['timeoutSeconds']}s"
    assert int(options["retries"]) == probe["failureThreshold"]
    assert options["start-period"] == f"{patience(PROBES['startup'])}s"
    (program,) = json.loads(check[check.index("CMD ") + 4 :])[3:]
    compile(program, "HEALTHCHECK", "exec")
    port = CONTAINER["ports"][0]["containerPort"]
    assert f"http://127.0.0.1:{port}{probe['httpGet']['path']}'" in program


def test_somebody_reaps_what_killed_processes_had_started() -> None:
    assert POD["shareProcessNamespace"] is True


def test_what_is_written_to_is_writable() -> None:
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert POD["securityContext"]["runAsNonRoot"]
    volumes = {volume["name"]: volume["emptyDir"] for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: volumes.pop(mount["name"]) for mount in CONTAINER["volumeMounts"]}
    assert not volumes
    environment = {variable["name"]: variable.get("value") for variable in CONTAINER["env"]}
    assert environment.keys() == {VARIABLE, "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"}
    crashes = flag("flight-recorder-dir")
    written = [environment["XDG_RUNTIME_DIR"], environment["XDG_CACHE_HOME"], environment["HOME"], crashes]
    parents = [{path, *map(str, Path(path).parents)} & mounts.keys() for path in written]
    assert parents == [{"/run/pyllm"}, {"/tmp"}, {"/tmp"}, {"/var/lib/pyllm"}]
    size = mounts["/var/lib/pyllm"]["sizeLimit"]
    assert int(size[:-2]) * UNITS[size[-2:]] > KEEP * MAX_BYTES


@pytest.mark.parametrize(
    "text",
    ["a: b # c", "a: {}", "a: yes", "a: &b c", "a:\nb: c", "a: b\n  c: d", "a: 1\na: 2", "- a\nb: c", "a: |\n  b"],
)
def test_what_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_yaml(text)
