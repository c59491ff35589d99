"""Translates vLLM's nested settings and `--swap-space` into pyllm's. Refuses unknown parts. Parses no arguments."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pyllm.config.option_texts import parse_count
from pyllm.errors import ConfigError

Settings = dict[str, Any]
# The result of a reader: settings of pyllm, and notices.
Read = tuple[Settings, list[str]]

# Parts of vLLM's speculative-config for prompt lookup, and values without an effect here.
_LOOKUP_PARTS = frozenset({"method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"})
_EAGER = frozenset({"NONE", "none"})


def settle(options: argparse.Namespace) -> None:
    """Translate vLLM's settings among the options into pyllm's, unless those are given, and add notices.

    Raises:
        ConfigError: a part has no meaning here; the text gives the replacement.
    """
    for flag, read in _READERS.items():
        text = getattr(options, flag, None)
        if text is None:
            continue
        settings, notices = read(text, vars(options))
        for name, value in settings.items():
            if getattr(options, name, None) is None:
                setattr(options, name, value)
        options.notices = [*getattr(options, "notices", ()), *notices]


def _speculative(text: str, given: Mapping[str, Any]) -> Read:
    del given
    parts = _parts("speculative-config", text)
    method = parts.get("method", "draft_model" if "model" in parts else "ngram")
    if method != "ngram":
        raise ConfigError(
            f"--speculative-config: there is no method {method!r}, drafts come from the stream's own text: use ngram"
        )
    _refuse_others("speculative-config", parts, _LOOKUP_PARTS)
    ignored = [name for name in ("prompt_lookup_max", "prompt_lookup_min") if name in parts]
    notice = f"--speculative-config: {' and '.join(ignored)} has no effect, the longest match is taken"
    count = parts.get("num_speculative_tokens")
    return ({} if count is None else {"num_speculative_tokens": count}), [notice] * bool(ignored)


def _spec_tokens(text: str, given: Mapping[str, Any]) -> Read:
    del given
    return {"num_speculative_tokens": parse_count(text)}, []


def _structured_outputs(text: str, given: Mapping[str, Any]) -> Read:
    del given
    parts = _parts("structured-outputs-config", text)
    known = {"backend", "reasoning_parser", "disable_fallback", "disable_any_whitespace", "enable_in_reasoning"}
    _refuse_others("structured-outputs-config", parts, known)
    for name in ("disable_any_whitespace", "enable_in_reasoning"):
        if parts.get(name):
            raise ConfigError(f"--structured-outputs-config: {name} is always false here: leave it out")
    settings = {"reasoning_parser": parts["reasoning_parser"]} if parts.get("reasoning_parser") else {}
    is_other = parts.get("backend", "auto") not in {"auto", "guidance"}
    return settings, ["--structured-outputs-config: llguidance compiles every constraint"] * is_other


def _kv_events(text: str, given: Mapping[str, Any]) -> Read:
    del given
    parts = _parts("kv-events-config", text)
    fields = ("endpoint", "replay_endpoint", "buffer_steps", "hwm", "topic")
    _refuse_others("kv-events-config", parts, {"enable_kv_cache_events", "publisher", "max_queue_size", *fields})
    is_enabled = bool(parts.get("enable_kv_cache_events"))
    publisher = parts.get("publisher") or ("zmq" if is_enabled else "null")
    if publisher not in {"null", "zmq"}:
        raise ConfigError(f"--kv-events-config: there is no publisher {publisher!r}: give zmq, or null for none")
    if not is_enabled or publisher == "null":
        return {"enable_kv_cache_events": is_enabled}, []
    given = {f"kv_events_{name}": parts[name] for name in fields if parts.get(name) is not None}
    is_local = "endpoint" not in parts
    notice = (
        "--kv-events-config: without an endpoint the events are published at tcp://127.0.0.1:5557, not at tcp://*:5557"
    )
    settings = {"enable_kv_cache_events": True, "kv_events_endpoint": "tcp://127.0.0.1:5557", **given}
    return settings, [notice] * is_local


def _logging(text: str, given: Mapping[str, Any]) -> Read:
    del given
    parts = _parts("logging-config", text)
    _refuse_others("logging-config", parts, {"log_level", "formatter", "configure_logging", "pylogging_config_file"})
    if parts.get("configure_logging") is False:
        raise ConfigError("--logging-config: configure_logging is always true here: leave it out")
    ours = {"log_format": parts.get("formatter"), "log_config_file": parts.get("pylogging_config_file")}
    notice = "--logging-config: PYLLM_LOG_LEVEL sets the level of the whole log"
    return {name: value for name, value in ours.items() if value is not None}, [notice] * ("log_level" in parts)


def _compilation(text: str, given: Mapping[str, Any]) -> Read:
    del given
    parts = {"level": int(text)} if text in {"0", "1", "2", "3"} else _parts("compilation-config", text)
    level, graphs = parts.get("level", parts.get("mode")), parts.get("cudagraph_mode", "")
    is_eager = level in {0, "NONE"} or graphs in _EAGER
    notice = "--compilation-config: pyllm compiles nothing, and captures steps by itself"
    return ({"enforce_eager": True} if is_eager else {}), [] if is_eager else [notice]


def _prefix_hash(text: str, given: Mapping[str, Any]) -> Read:
    del given
    if text == "sha256_cbor":
        return {"prefix_hash": text}, []
    if text not in {"sha256", "xxhash", "xxhash_cbor"}:
        raise ConfigError(
            f"--prefix-caching-hash-algo must be sha256_cbor, sha256, xxhash or xxhash_cbor, got {text!r:.80}"
        )
    return {"prefix_hash": "blake3"}, [f"--prefix-caching-hash-algo: BLAKE3 takes the place of {text}"]


def _swap_space(text: str, given: Mapping[str, Any]) -> Read:
    try:
        gibibytes = float(text)
    except ValueError:
        raise ConfigError(f"--swap-space needs a number of GiB, got {text!r:.80}") from None
    ranks = (given.get("tensor_parallel_size") or 1) * (given.get("pipeline_parallel_size") or 1)
    return {"kv_offloading_size": gibibytes * ranks}, [
        f"--swap-space: --kv-offloading-size is {gibibytes * ranks:g} GiB"
    ]


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Read]] = {
    "speculative-config": _speculative,
    "spec-tokens": _spec_tokens,
    "structured-outputs-config": _structured_outputs,
    "kv-events-config": _kv_events,
    "logging-config": _logging,
    "compilation-config": _compilation,
    "prefix-caching-hash-algo": _prefix_hash,
    "swap-space": _swap_space,
}
# vLLM's flags that are read here.
NESTED = tuple(_READERS)


def _parts(flag: str, text: str) -> Settings:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ConfigError(f"--{flag} must be a JSON object, got {text!r:.80}") from None


def _refuse_others(flag: str, parts: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    if others := sorted(set(parts) - known):
        raise ConfigError(f"--{flag}: {others[0]} has no meaning here; known are {', '.join(sorted(known))}")
