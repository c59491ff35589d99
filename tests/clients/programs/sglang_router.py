"""sglang-router in front of two servers: it passes requests on, balances, follows a client that leaves, fails over."""

import sys
from pathlib import Path

from routed import check_router
from routed_streams import check_streams

ROUTER = str(Path(sys.executable).with_name("sglang-router"))


def command(port: int, other: int, workers: list[str]) -> list[str]:
    """Its command line."""
    flags = ["--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
    return [ROUTER, "launch", *flags, "--worker-urls", *workers]


# It passes on keys, request ids and trace ids, and no other header.
check_streams(command, passes_headers=lambda path: False)
check_router(command)
