import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyllm.cli import main
from tests.hub_server import HubServer
from tests.tiny_model import write_tiny_model


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyllm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == "0.1.0"
    text = run("serve", "--help=all").stdout
    for flag in (
        "--tensor-parallel-size",
        "--no-enable-prefix-caching",
        "--kv-offloading-size",
        "--kv-cache-memory-bytes",
        "--scheduling-policy",
        "--tenant-weights",
        "--scheduler-recording",
        "--enable-kv-cache-events",
        "--port",
    ):
        assert flag in text


def test_unknown_flag_is_a_usage_error() -> None:
    result = run("serve", "--max-num-seq", "3", "--gpu-memory", "1")
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "--max-num-seqs", "-1"], "max_num_seqs"),
        (["serve", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["serve", "nowhere"], "owner/repo:Q4_K_M"),
        (["pull", "/nowhere"], "nothing to download"),
        (["rm", "nowhere"], "no model at"),
        (["serve", "--tensor-parallel-size", "2"], "9"),
        (["serve", "--max-model-len", "9000"], "8192"),
        (["serve", "--block-size", "17"], "power of two"),
        (["serve", "--scheduling-policy", "lifo"], "fcfs, priority, shortest, fair"),
        (["serve", "--tenant-weights", "team-a"], "team-a=3,team-b=1"),
        (["serve", "--watermark", "1"], "watermark"),
        (["serve", "--scheduler-recording", "/nowhere/recording"], "/nowhere"),
        (["replay", "/nowhere/recording"], "/nowhere/recording"),
        (["serve", "--distributed-executor-backend", "uni", "--tensor-parallel-size", "3"], "uni"),
        (["core", "--bind", "tcp://127.0.0.1:0"], "--curve-keys"),
        (["--model", "/nowhere"], "/nowhere"),
        (["serve", "--served-model-name", ""], "served_model_name"),
        (["serve", "--served-model-name", "chat", __file__], "give the model first, or by --model"),
        (["serve", "--served-model-name", "chat", "owner/repo"], "give the model first, or by --model"),
        (["serve", "/nowhere/model.gguf", "--served-model-name", "chat", "gpt"], "/nowhere/model.gguf"),
    ],
)
def test_settings_that_cannot_work_are_one_clear_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_keygen(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", f"{tmp_path}/keys"]) == 0
    assert "server.key_secret" in capsys.readouterr().out
    assert main(["keygen", f"{tmp_path}/keys"]) == 2


def test_standard_files_that_were_closed_become_dev_null() -> None:
    """Otherwise the listening socket gets a number that a child's stdin or stderr takes."""
    script = """if True:
        import os
        from pyllm.cli import main
        os.close(0)
        os.close(2)
        try:
            main(["--version"])
        except SystemExit:
            print([os.path.samefile("/dev/null", f"/proc/self/fd/{number}") for number in (0, 2)])
    """
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.endswith("[True, True]\n")


def test_models_are_pulled_listed_and_removed(tmp_path: Path) -> None:
    with HubServer() as server:
        server.add("me/tiny", Path(write_tiny_model(tmp_path / "tiny")))
        server.add("me/strange", Path(write_tiny_model(tmp_path / "strange", architectures=["StrangeForCausalLM"])))
        online = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
        pulled = run("pull", "me/tiny", **online)
        assert "downloading model.safetensors of me/tiny" in pulled.stderr
        assert run("pull", "me/strange", **online).returncode == 0
    offline = online | {"HF_HUB_OFFLINE": "1"}
    assert run("pull", "me/tiny", **offline).stdout == pulled.stdout
    rows = json.loads(run("models", "--json", **offline).stdout)
    assert [(row["name"], row["runs"]) for row in rows] == [
        ("(embedded)", True),
        ("me/strange", None),
        ("me/tiny", True),
    ]
    assert {type(row["fits"]) for row in rows} == {bool}
    assert rows[1]["reason"] == "transformers is asked when it is served"
    assert rows[2]["path"] == pulled.stdout.strip()
    table = run("models", **offline).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "(embedded)", "me/strange", "me/tiny"]
    assert "freed" in run("rm", "me/tiny", **offline).stdout
    again = run("rm", "me/tiny", **offline)
    assert (again.returncode, "not in the cache" in again.stderr) == (2, True)
