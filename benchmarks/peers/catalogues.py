"""llama.cpp's router on the workloads of `benchmarks.servers.catalogue`.

`python -m benchmarks.peers.catalogues FOLDER`, where FOLDER is that of `make peers`. pyllm's own figures are
`make bench ONLY=catalogue`.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.peer_server import Server
from benchmarks.servers.catalogue import copies, first_tokens, random_switches

CONTEXT = 2048  # tokens of each model


def main(folder: Path) -> None:
    """Print a JSON line for each figure."""
    with tempfile.TemporaryDirectory() as models:
        files = copies(Path(models))
        command = (str(folder / "llama/bin/llama-server"), "--port", "{port}", "--ctx-size", str(CONTEXT))
        router = (*command, "--models-dir", models, "--models-max", "2")
        with Server(router, {}, folder / "router.log", knows_capitals=False) as server:
            for record in asyncio.run(first_tokens(server.address, files)):
                print(json.dumps(record), flush=True)
            print(json.dumps(asyncio.run(random_switches(server.address))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
