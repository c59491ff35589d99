"""A Ray cluster of several nodes on this machine, in a process of its own; nodes come and go."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil

OBJECT_STORE = 80 << 20  # bytes, the least that Ray takes


class ClusterNodes(NamedTuple):
    """`address` is that of the head, which has no CPUs for ranks."""

    address: str
    process: "subprocess.Popen[str]"

    def add(self, num_cpus: int) -> None:
        """One more node."""
        self._ask(f"add {num_cpus}")

    def kill_node_of(self, process: psutil.Process) -> None:
        """SIGKILL to the node that a process runs on, as far as Ray can tell: its raylet."""
        raylet = next(parent for parent in process.parents() if "raylet" in parent.name())
        self._ask(f"kill {raylet.pid}")

    def _ask(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextlib.contextmanager
def cluster_of(*num_cpus: int, head_cpus: int = 0) -> Iterator[ClusterNodes]:
    """A cluster whose nodes have so many CPUs."""
    command = [sys.executable, "-m", "tests.ray.cluster_nodes", str(head_cpus), *map(str, num_cpus)]
    environment = os.environ | {"RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield ClusterNodes(process.stdout.readline().strip(), process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def main(head_cpus: int, *num_cpus: int) -> None:
    """Start the nodes, print the head's address, and do what comes on stdin until that ends."""
    from ray.cluster_utils import Cluster

    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints.
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": head_cpus, "object_store_memory": OBJECT_STORE, "include_dashboard": False},
    )
    nodes = [cluster.add_node(num_cpus=count, object_store_memory=OBJECT_STORE) for count in num_cpus]
    print(cluster.address, file=said, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add", count]:
                nodes.append(cluster.add_node(num_cpus=int(count), object_store_memory=OBJECT_STORE))
            case ["kill", pid]:
                (node,) = [node for node in nodes if node.all_processes["raylet"][0].process.pid == int(pid)]
                cluster.remove_node(node, allow_graceful=False)
                nodes.remove(node)
        print("done", file=said, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
