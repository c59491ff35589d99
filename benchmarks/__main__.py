"""`python -m benchmarks [PREFIX]`: run the benchmarks whose names begin with PREFIX, one JSON object a line."""

import json
import sys
from collections.abc import Callable, Iterator

from benchmarks.engine import (
    adapters,
    captured_steps,
    grammar,
    kv_stores,
    memory,
    pipeline,
    placement,
    replicas,
    sampling,
    scheduler,
    sparse_attention,
    step,
)
from benchmarks.frontend import encoding, idle_streams, long_prompts, shaping, stop_strings, token_costs, unknown_fields
from benchmarks.peers import transformers_backend
from benchmarks.record import Record
from benchmarks.servers import added_core, bench_client, catalogue, kv_tiers, recovery, startup, survival_overhead

# The name of each part, and the function that measures its figures.
PARTS: dict[str, Callable[[], Iterator[Record]]] = {
    **scheduler.FIGURES,
    **memory.FIGURES,
    "kv_store": kv_stores.run,
    "placement.place_us": placement.run,
    **replicas.FIGURES,
    "sampling": sampling.run,
    "step": step.run,
    "pipeline.bubbles": pipeline.run,
    "captured_steps": captured_steps.run,
    "adapters": adapters.run,
    "sparse_attention": sparse_attention.run,
    **token_costs.FIGURES,
    "frontend.idle_stream_kb": idle_streams.run,
    "bench_client": bench_client.run,
    "encoding": encoding.run,
    **stop_strings.FIGURES,
    "long_prompt": long_prompts.run,
    "grammar": grammar.run,
    "unknown_fields": unknown_fields.run,
    "shaping": shaping.run,
    "startup": startup.run,
    "catalogue": catalogue.run,
    **recovery.FIGURES,
    **added_core.FIGURES,
    **kv_tiers.FIGURES,
    "survival.overhead_percent": survival_overhead.run,
    "transformers_backend": transformers_backend.run,
}


def main() -> None:
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    parts = [part for part in PARTS if part.startswith(prefix) or prefix.startswith(part + ".")]
    if not parts:
        sys.exit(f"no benchmark begins with {prefix!r}; there are {', '.join(PARTS)}")
    for part in parts:
        for record in PARTS[part]():
            if str(record["name"]).startswith(prefix):
                print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
