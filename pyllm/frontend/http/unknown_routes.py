"""The path that a request's route has, and the route that a caller of an unknown path probably meant.

Knows the routes of other servers by their documents: Ollama, llama.cpp, vLLM, SGLang, TGI, TRL, OpenAI.
"""

import difflib
from collections.abc import Iterable, Mapping

VERSION_PREFIX = "/v1"
# The first words of the routes below /v1 that also work without it, as on llama.cpp.
_VERSIONED = frozenset(
    {"completions", "chat", "embeddings", "models", "responses", "messages", "rerank", "reranking", "score"}
)
_CLOSE = 0.85

_LLAMA = "it is of llama.cpp's own API; here it is {}"
_TEXT_ONLY = "only text is served"
_NO_TRANSFER = (
    "weights come from files, by POST /admin/weights, or as arrays, by `update_weights` of Python's `AsyncEngine`"
)
# By the path's beginning; the longest that fits counts.
MEANT: Mapping[str, str] = {
    **dict.fromkeys(
        ("/api/create", "/api/blobs"), "what a Modelfile sets are flags of `pyllm serve`, and models are of the hub"
    ),
    **dict.fromkeys(("/api/copy", "/api/push"), "models are those of the Hugging Face hub, which keep their names"),
    "/completion": _LLAMA.format("POST /v1/completions"),
    "/embedding": _LLAMA.format("POST /v1/embeddings"),
    "/props": _LLAMA.format("GET /server_info"),
    "/slots": _LLAMA.format("GET /admin/requests, for admins"),
    "/apply-template": _LLAMA.format("POST /tokenize with messages, which gives their tokens"),
    **dict.fromkeys(("/generate", "/generate_stream"), "it is TGI's and SGLang's; here it is POST /v1/completions"),
    "/info": "it is TGI's; here it is GET /server_info",
    "/inference": "it is vLLM's; here it is POST /v1/completions with token ids",
    "/pooling": "it is vLLM's; here it is POST /v1/embeddings, /v1/score or /classify",
    **dict.fromkeys(("/v2/embed", "/v1/embed", "/embed"), "it is Cohere's and TEI's; here it is POST /v1/embeddings"),
    **dict.fromkeys(("/v1/audio", "/v1/images", "/v1/videos", "/v1/realtime"), _TEXT_ONLY),
    **dict.fromkeys(("/v1/batches", "/v1/files"), "`pyllm batch` answers a file of requests"),
    **dict.fromkeys(("/v1/assistants", "/v1/threads", "/v1/conversations"), "POST /v1/responses keeps answers"),
    "/v1/complete": "it was Anthropic's; here it is POST /v1/messages",
    "/v1/moderations": "no model here moderates",
    **dict.fromkeys(("/v1/tokenize", "/v1/detokenize"), "vLLM's /tokenize and /detokenize are not below /v1"),
    **dict.fromkeys(("/healthz", "/livez", "/readyz", "/readiness", "/v1/health"), "here it is GET /health"),
    "/v1/metrics": "here it is GET /metrics",
    **dict.fromkeys(("/update_weights", "/init_weight_transfer_engine", "/collective_rpc"), _NO_TRANSFER),
    **dict.fromkeys(("/start_weight_update", "/finish_weight_update", "/get_world_size"), _NO_TRANSFER),
    **dict.fromkeys(("/init_weights_update_group", "/update_weights_from_distributed"), _NO_TRANSFER),
    **dict.fromkeys(("/init_communicator", "/update_named_param", "/update_weights_from_tensor"), _NO_TRANSFER),
    "/update_weights_from_disk": "SGLang's; here it is POST /admin/weights with a path",
    "/pause_generation": "SGLang's; here it is POST /pause",
    "/continue_generation": "SGLang's; here it is POST /resume",
    "/release_memory_occupation": "SGLang's; here it is POST /sleep",
    "/resume_memory_occupation": "SGLang's; here it is POST /wake_up",
    "/flush_cache": "SGLang's; here it is POST /reset_prefix_cache",
    **dict.fromkeys(("/v1/chat", "/chat"), "it is POST /v1/chat/completions"),
    **dict.fromkeys(("/status", "/ready", "/v1/status", "/v1/ready"), "here it is GET /health, or /server_info"),
    "/redoc": "GET /docs shows the routes",
}


def normal_path(path: str, root: str = "") -> str:
    """The path that a route has: below `root`, which a proxy may leave there or take away, and OpenAI's below /v1."""
    if path == root or path.startswith(f"{root}/"):
        path = path.removeprefix(root) or "/"
    return f"{VERSION_PREFIX}{path}" if path[1:].partition("/")[0] in _VERSIONED else path


def explain_unknown_route(method: str, path: str, known: Iterable[str]) -> str:
    """The error of a path that is no route. `known` are the paths that are."""
    meant = _meant(path.rstrip("/") or "/", [other for other in known if other != path])
    hint = meant or "GET /openapi.json lists the routes, and OpenAI's are below /v1"
    return f"There is no route {method} {path[:200]}: {hint}{'' if hint.endswith('?') else '.'}"


def explain_method(method: str, path: str, allow: str) -> str:
    """The error of a method that a route does not take; `allow` has those that it does, separated by commas."""
    taken = [name for name in allow.replace(" ", "").split(",") if name not in ("", "OPTIONS")]
    return f"{path[:200]} does not take {method}" + (f", but {' and '.join(sorted(taken))}." if taken else ".")


def _meant(path: str, known: list[str]) -> str:
    if exact := MEANT.get(path):
        return exact
    # An address of a client that has too much: `/v1/v1/messages`, `/v1/completions/chat/completions`.
    ends = [other for other in known if other.startswith(VERSION_PREFIX) and path.endswith((other, other[3:]))]
    if ends and "{" not in (longest := max(ends, key=len)):
        return f"did you mean {longest}? Clients add the end of the path to their base URL themselves"
    if near := difflib.get_close_matches(path.lower(), known, n=1, cutoff=_CLOSE):
        return f"did you mean {near[0]}?"
    beginnings = [beginning for beginning in MEANT if path.startswith(f"{beginning}/")]
    return MEANT[max(beginnings, key=len)] if beginnings else ""
