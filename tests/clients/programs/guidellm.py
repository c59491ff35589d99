"""GuideLLM: a benchmark of a few prompts from a file."""

import json
import os
import sys
from pathlib import Path

from checks import Servers, check, main, run

GUIDELLM = str(Path(sys.executable).with_name("guidellm"))


def benchmark(servers: Servers, *options: str) -> None:
    """Run one; checks that every request was answered."""
    data = servers.folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Tell me about {number}."}) + "\n" for number in range(8)))
    command = [GUIDELLM, "run", "--data", f"kind=json_file,path={data}", "--disable-console-interactive"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"]
    report = servers.folder / "report.json"
    command += ["--output", f"kind=json,path={report}", *options]
    code, output = run(command, dict(os.environ), servers.folder)
    assert code == 0, output
    (result,) = json.loads(report.read_text())["benchmarks"]
    totals = result["metrics"]["request_totals"]
    assert totals["successful"] == 6, output
    assert totals["errored"] == 0, output


@check
def chat(servers: Servers) -> None:
    benchmark(servers, "--backend", f"kind=openai_http,target={servers.scripted}")


main()
