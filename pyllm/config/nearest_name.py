"""The known name that another name means: the one of a peer's parameter, or the closest to a misspelt one.

Each word of a close name must be close, because a wrong guess misleads. Knows neither requests nor commands.
"""

import difflib
from collections.abc import Iterable, Mapping

# Names in OpenAI, transformers, SGLang, llama.cpp, Ollama, LM Studio and TGI of parameters that mean the same here.
PEER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(
        ("max_completion_tokens", "max_new_tokens", "max_output_tokens", "n_predict", "num_predict"), "max_tokens"
    ),
    "min_new_tokens": "min_tokens",
    **dict.fromkeys(("stop_sequences", "stop_strings", "stopping_strings"), "stop"),
    "no_stop_trim": "include_stop_str_in_output",
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(("random_seed", "sampling_seed"), "seed"),
    **dict.fromkeys(("n_cmpl", "num_return_sequences"), "n"),
    **dict.fromkeys(("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"), "thinking_token_budget"),
    "rid": "request_id",
    "extra_args": "vllm_xargs",  # over HTTP
}
# Names of parameters that mean something else, and the parameter to use here.
NEAR_NAMES: Mapping[str, str] = {
    "max_length": "max_tokens",
    "min_length": "min_tokens",
    "do_sample": "temperature, where 0 is greedy",
    "num_beams": "beam_width",
    **dict.fromkeys(("bad_words_ids", "custom_token_bans", "suppress_tokens"), "bad_words_token_ids"),
    **dict.fromkeys(("use_beam_search", "early_stopping"), "beam_width"),
    **dict.fromkeys(("typical_p", "typical", "top_n_sigma", "top_a", "tfs_z"), "min_p, the nearest sampler"),
    "eos_token_id": "stop_token_ids",
    "top_logprobs": "logprobs",
    "response_format": "structured_outputs",
    "guided_json": "structured_outputs",
}

# A word of at least this many letters may have two mistakes, a shorter one may have one: `tags` and `task` have two.
_LONG_WORD = 8
# The least letters of a common beginning that lacks at most one letter of a word: `comparison` means `compare`.
_BEGINNING = 3
# The least similarity of whole names with missing or extra hyphens.
_CLOSE_NAMES = 0.88


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is closest, or empty: its words, between hyphens, are each close to those of `name`.

    `name` may also lack the last word (`--kv-cache-memory`) or have its hyphens elsewhere (`max_modellen`).
    """
    close = [other for other in dict.fromkeys(known) if _is_close(_words(name), _words(other))]
    return max(close, key=lambda other: _ratio(name.lower(), other.lower()), default="")


def _is_close(words: list[str], others: list[str]) -> bool:
    if len(words) == len(others) and all(map(_is_close_word, words, others)):
        return True
    if len(words) > 1 and others[:-1] == words:
        return True
    return _ratio("".join(words), "".join(others)) >= _CLOSE_NAMES


def _is_close_word(word: str, other: str) -> bool:
    beginning = max(_BEGINNING, min(len(word), len(other)) - 1)
    if word[:beginning] == other[:beginning]:
        return True
    most = 1 if len(word) < _LONG_WORD else 2
    return abs(len(word) - len(other)) <= most and _num_mistakes(word, other) <= most


def _num_mistakes(word: str, other: str) -> int:
    """The number of letters that are wrong, missing, extra, or swapped with the next one."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(word, 1):
        counts = [row]
        for column, wanted in enumerate(other, 1):
            count = min(counts[-1] + 1, last[column] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and word[row - 2] == wanted and letter == other[column - 2]:
                count = min(count, before[column - 2] + 1)
            counts.append(count)
        before, last = last, counts
    return last[-1]


def _words(name: str) -> list[str]:
    return name.lower().replace("_", "-").lstrip("-/").split("-")


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()
