"""The `llm` command: a server in its list of models, prompts, streams, a schema, a tool, a conversation."""

import json
import os
import sys
from pathlib import Path

from checks import Servers, check, main, run

LLM = str(Path(sys.executable).with_name("llm"))
# What docs/clients.md says to write into extra-openai-models.yaml.
MODELS = """\
- model_id: pyllm
  model_name: smol
  api_base: {model}/v1
- model_id: pyllm-scripted
  model_name: scripted
  api_base: {scripted}/v1
  supports_tools: true
  supports_schema: true
"""
TOOL = '''
def weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"
'''


def llm(servers: Servers, *arguments: str) -> str:
    """Run the command; gives what it wrote."""
    home = servers.folder / "llm"
    home.mkdir(exist_ok=True)
    (home / "extra-openai-models.yaml").write_text(MODELS.format(model=servers.model, scripted=servers.scripted))
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    code, output = run([LLM, *arguments], environment, servers.folder)
    assert code == 0, output
    return output.strip()


@check
def models(servers: Servers) -> None:
    assert "pyllm-scripted" in llm(servers, "models")


@check
def prompt(servers: Servers) -> None:
    assert llm(servers, "-m", "pyllm", "-o", "max_tokens", "8", "Hi")


@check
def without_stream(servers: Servers) -> None:
    assert llm(servers, "-m", "pyllm-scripted", "--no-stream", "Hi") == "Hello from the script."


@check
def conversation(servers: Servers) -> None:
    assert llm(servers, "-m", "pyllm-scripted", "-c", "And more?") == "Hello from the script."


@check
def schema(servers: Servers) -> None:
    output = llm(servers, "-m", "pyllm-scripted", "--schema", "city, country", "Name a city with its country.")
    assert json.loads(output) == {"city": "Paris", "country": "France"}


@check
def tool_loop(servers: Servers) -> None:
    output = llm(servers, "-m", "pyllm-scripted", "--functions", TOOL, "What is the weather in Paris?")
    assert "It is 18 degrees in Paris." in output


main()
