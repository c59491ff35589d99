"""Claude Code, as `claude-agent-sdk` bundles it: a conversation, its tool loop, deferred tools, a typed answer."""

import json
import os
from pathlib import Path

import claude_agent_sdk
from checks import Servers, check, main, metric, run
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

CLAUDE = str(Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude")


def settings(address: str, model: str, context: int, output: int) -> dict[str, str]:
    """What docs/clients.md says to set."""
    return {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def claude(folder: Path, variables: dict[str, str], *arguments: str) -> tuple[int, str]:
    """`claude -p` with these arguments."""
    command = [CLAUDE, "-p", "--dangerously-skip-permissions", *arguments]
    return run(command, {**os.environ, **variables}, folder)


def scripted(servers: Servers, *arguments: str) -> tuple[int, str]:
    """`claude -p` with the scripted model."""
    return claude(servers.folder, settings(servers.scripted, "scripted", 200_000, 8192), *arguments)


@check
def one_answer(servers: Servers) -> None:
    code, output = scripted(servers, "Say hello.")
    assert code == 0, output
    assert "Hello from the script." in output


@check
def tool_loop(servers: Servers) -> None:
    code, output = scripted(servers, "Make a greeting file, please.")
    assert code == 0, output
    assert "All is done." in output, output
    assert (servers.folder / "greeting.txt").read_text() == "goodbye\n"
    assert (servers.folder / "copy.txt").read_text() == "hello\n"


@check
def deferred_tool(servers: Servers) -> None:
    # It names the tool first; what the model is told of it comes once the model has searched for it.
    code, output = scripted(servers, "Find a tool.")
    assert code == 0, output
    assert "The notebook tool is there." in output, output


@check
def typed_answer(servers: Servers) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    code, output = scripted(
        servers, "Name a city, typed.", "--json-schema", json.dumps(schema), "--output-format", "json"
    )
    assert code == 0, output
    result = json.loads(next(line for line in output.splitlines() if line.startswith('{"') and "structured" in line))
    assert result["structured_output"] == {"city": "Paris"}, result


@check
def all_tools_at_once(servers: Servers) -> None:
    switches = {"ENABLE_TOOL_SEARCH": "false", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}
    variables = {**settings(servers.scripted, "scripted", 200_000, 8192), **switches}
    code, output = claude(servers.folder, variables, "Say hello.")
    assert code == 0, output
    assert "Hello from the script." in output, output


@check
def context_report(servers: Servers) -> None:
    code, output = scripted(servers, "/context")
    assert code == 0, output
    assert "scripted" in output


@check
async def agent_library(servers: Servers) -> None:
    options = ClaudeAgentOptions(
        env=settings(servers.scripted, "scripted", 200_000, 8192),
        cwd=servers.folder,
        permission_mode="bypassPermissions",
    )
    results = [
        message async for message in query(prompt="Say hello.", options=options) if isinstance(message, ResultMessage)
    ]
    assert results[-1].result == "Hello from the script.", results


@check
def short_prompt_on_the_embedded_model(servers: Servers) -> None:
    # Its whole prompt has more tokens than this model's context; with few tools and a short system prompt it fits.
    # Whether this small model ends its answer in time is its own affair.
    before = metric(servers.model, "vllm:prompt_tokens_total")
    variables = settings(servers.model, "smol", 8192, 32)
    _, output = claude(servers.folder, variables, "Say hello.", "--tools", "Bash,Read", "--system-prompt", "Be brief.")
    assert "too long" not in output, output
    assert metric(servers.model, "vllm:prompt_tokens_total") > before + 1000, output


@check
def too_long_a_prompt(servers: Servers) -> None:
    # It believes in a larger context than the server has, and reads the true one from the server's error.
    variables = settings(servers.model, "smol", 200_000, 256)
    code, output = claude(servers.folder, variables, "Say hello.")
    assert code == 1, output
    assert "Prompt is too long" in output, output
    assert "(limit 81" in output, output


main()
