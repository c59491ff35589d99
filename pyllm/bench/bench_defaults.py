"""The names and default values of `pyllm bench`, each defined once for flags and structs.

Imports nothing heavy, so that `--help` is fast. Knows neither flags nor the use of a value.
"""

import math
from collections.abc import Mapping
from typing import Literal

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
# Each backend's route. vLLM's other backends are other protocols; its `vllm` is an alias of `openai`.
BACKENDS: Mapping[str, str] = {"openai": COMPLETIONS, "vllm": COMPLETIONS, "openai-chat": CHAT}
BACKEND = "openai"

PromptSet = Literal["natural", "sharegpt", "random"]
INPUT_TOKENS = 1024  # of a random prompt, in words
OUTPUT_TOKENS = 128  # of an answer, unless a data set gives its length

Ramp = Literal["linear", "exponential"]
REQUEST_RATE = math.inf  # requests/s
BURSTINESS = 1.0

# Values of --percentile-metrics. The last two count from the time at which a request was due.
METRICS: Mapping[str, str] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
    "client_queue_time": "Client Queue Time",
    "e2el_including_client_queue": "End-to-end Latency including Client Queue",
}
REPORTED_METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (99.0,)
TARGETS = ("ttft", "tpot", "e2el")  # latencies that goodput may have targets for
