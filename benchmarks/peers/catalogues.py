"""llama.cpp's router, and llama-swap over llama.cpp's server, on the workloads of `benchmarks.servers.catalogue`.

`python -m benchmarks.peers.catalogues FOLDER [LLAMA_SWAP]`, where FOLDER is that of `make peers` and LLAMA_SWAP a
binary; without one, llama-swap is left out. pyllm's own figures are `make bench ONLY=catalogue`.
"""

import asyncio
import json
import shlex
import sys
import tempfile
from itertools import combinations
from pathlib import Path

from benchmarks.peers.peer_server import Server
from benchmarks.servers.catalogue import MODELS, copies, first_tokens, random_switches

CONTEXT = 2048  # tokens of each model


def main(folder: Path, llama_swap: Path | None) -> None:
    """Print a JSON line for each figure."""
    llama = (str(folder / "llama/bin/llama-server"), "--ctx-size", str(CONTEXT))
    with tempfile.TemporaryDirectory() as models:
        files = copies(Path(models))
        router = (*llama, "--port", "{port}", "--models-dir", models, "--models-max", "2")
        _measure("llama.cpp", router, folder / "router.log", files, "abc")
        if llama_swap is None:
            return
        configuration = folder / "llama-swap.json"
        configuration.write_text(json.dumps(_swap_configuration(llama, files)))
        proxy = (str(llama_swap), "--listen", "127.0.0.1:{port}", "--config", str(configuration))
        # Its solver always keeps the first model, so only the others are ever loaded anew.
        _measure("llama-swap", proxy, folder / "llama-swap.log", files, "bc")


def _measure(name: str, command: tuple[str, ...], log: Path, files: list[Path], first: str) -> None:
    with Server(command, {}, log, knows_capitals=False) as server:
        for record in asyncio.run(first_tokens(server.address, files, first)):
            print(json.dumps({**record, "server": name}), flush=True)
        print(json.dumps({**asyncio.run(random_switches(server.address)), "server": name}), flush=True)


def _swap_configuration(llama: tuple[str, ...], files: list[Path]) -> dict[str, object]:
    """Any two models at once, and none unloaded but for another. JSON is YAML, too."""
    commands = {
        name: {"cmd": f"{shlex.join((*llama, '--model', str(file)))} --port ${{PORT}}", "ttl": 0}
        for name, file in zip(MODELS, files, strict=True)
    }
    matrix = {"sets": {"".join(pair): " & ".join(pair) for pair in combinations(MODELS, 2)}}
    return {"models": commands, "routing": {"router": {"use": "matrix", "settings": {"matrix": matrix}}}}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
