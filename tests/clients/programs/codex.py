"""The Codex CLI: a conversation, commands and patches by its function tools, its free-form patch tool, a schema."""

import json
import os
from pathlib import Path

import codex_cli_bin
from checks import Servers, check, main, run

CODEX = str(Path(codex_cli_bin.__file__).parent / "bin" / "codex")
CONFIG = """\
model = "{model}"
model_provider = "pyllm"
web_search = "disabled"
check_for_update_on_startup = false
{more}
[model_providers.pyllm]
name = "pyllm"
base_url = "{address}/v1"
wire_api = "responses"

[analytics]
enabled = false
"""
# What Codex is told of a model that it does not know: it has the patch tool, and a short prompt.
CATALOG = {
    "models": [
        {
            "slug": "scripted",
            "display_name": "scripted",
            "description": "",
            "supported_reasoning_levels": [],
            "shell_type": "unified_exec",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 1,
            "base_instructions": "You are a coding agent.",
            "supports_reasoning_summaries": False,
            "support_verbosity": False,
            "apply_patch_tool_type": "freeform",
            "truncation_policy": {"mode": "tokens", "limit": 10000},
            "supports_parallel_tool_calls": True,
            "experimental_supported_tools": [],
            "context_window": 200000,
            "input_modalities": ["text"],
        }
    ]
}


def codex(servers: Servers, *arguments: str, more: str = "") -> tuple[int, str]:
    """`codex exec` with the scripted model."""
    home = servers.folder / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONFIG.format(model="scripted", address=servers.scripted, more=more))
    environment = {**os.environ, "CODEX_HOME": str(home)}
    flags = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return run([CODEX, *flags, *arguments], environment, servers.folder)


@check
def one_answer(servers: Servers) -> None:
    code, output = codex(servers, "Say hello.")
    assert code == 0, output
    assert "Hello from the script." in output


@check
def tool_loop(servers: Servers) -> None:
    code, output = codex(servers, "Make a greeting file, please.")
    assert code == 0, output
    assert "All is done." in output, output
    assert (servers.folder / "greeting.txt").read_text() == "goodbye\n"


@check
def patch_tool(servers: Servers) -> None:
    catalog = servers.folder / "catalog.json"
    catalog.write_text(json.dumps(CATALOG))
    code, output = codex(servers, "Patch it freely.", more=f'model_catalog_json = "{catalog}"')
    assert code == 0, output
    assert "All is patched." in output, output
    assert (servers.folder / "patched.txt").read_text() == "made by a patch\n"


@check
def typed_answer(servers: Servers) -> None:
    schema = servers.folder / "schema.json"
    schema.write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            }
        )
    )
    code, output = codex(servers, "--output-schema", str(schema), "Name a city, typed.")
    assert code == 0, output
    assert '{"city": "Paris"}' in output, output


@check
def web_search_is_left_out(servers: Servers) -> None:
    code, output = codex(servers, "Say hello.", more='model_reasoning_summary = "auto"\nmodel_verbosity = "low"')
    assert code == 0, output
    # The last table in the file stays the last: this setting is on by default.
    config = servers.folder / ".codex" / "config.toml"
    config.write_text(config.read_text().replace('web_search = "disabled"\n', ""))
    environment = {**os.environ, "CODEX_HOME": str(config.parent)}
    flags = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    code, output = run([CODEX, *flags, "Say hello."], environment, servers.folder)
    assert code == 0, output


main()
