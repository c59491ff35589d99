"""The metrics of a server's processes, by their titles."""

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from pyllm.frontend.observability.metric_families import OURS, Families
from pyllm.supervision.process_samples import ProcessSample


def families_of_processes(families: Families, processes: Sequence[ProcessSample]) -> Iterator[Metric]:
    """Memory, CPU time, restarts and device memory; several processes with one title, as spares, count together."""
    memory, cpu, devices, restarts = Counter[str](), dict[str, float](), Counter[str](), dict[str, int]()
    for process in processes:
        memory[process.name] += process.memory_bytes
        cpu[process.name] = cpu.get(process.name, 0.0) + process.cpu_seconds
        restarts[process.name] = restarts.get(process.name, 0) + process.num_restarts
        if process.device_bytes is not None:
            devices[process.name] += process.device_bytes
    if memory:
        yield families.gauges(OURS, "process_memory_bytes", "PSS of a process.", "process", memory)
        yield families.counters(OURS, "process_cpu_seconds", "CPU time of a process.", "process", cpu)
        yield families.counters(OURS, "process_restarts", "Times it was restarted.", "process", restarts)
    if devices:
        yield families.gauges(OURS, "process_device_bytes", "Its memory on all cards.", "process", devices)
