"""Streams as a client sees them, of several kinds, and what sets one apart from its uncrashed twin. Knows HTTP only."""

import difflib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

# Bounds a stream that hangs; it is far beyond any recovery.
PATIENCE = 120.0
STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 12, "maxLength": 24},
        "tags": {"type": "array", "items": {"enum": ["sea", "sky", "land"]}, "minItems": 4, "maxItems": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
STORY = "Once upon a time there was a lighthouse by the sea. "


class Request(NamedTuple):
    """One request of the mix: what it shows, its route, its body."""

    name: str
    path: str
    body: dict[str, Any]


def mixed_requests(num_tokens: int, stop: str = "") -> list[Request]:
    """One request of each kind, of about `num_tokens` tokens each.

    `stop` is what ends the one with a stop string: a piece of its own text of more than one token, see `stop_string`.
    """
    free = {"max_tokens": num_tokens, "ignore_eos": True}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}
    tools = {
        "tools": [{"type": "function", "function": {"name": "find_person", "parameters": SCHEMA}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    return [
        _completion("greedy", prompt=STORY, temperature=0, **free),
        _completion("seeded", prompt=STORY, temperature=1, seed=11, top_p=0.95, **free),
        _completion("two samples", prompt="The sea is", temperature=1, seed=12, n=2, **free),
        _chat("schema", "Describe a person as JSON.", seed=13, **schema),
        _chat("tool call", "Who lives by the sea?", seed=16, **tools),
        _completion(
            "stop string", prompt="The sky is", temperature=1, seed=17, **free, **({"stop": [stop]} if stop else {})
        ),
        _completion(
            "penalties",
            prompt=STORY,
            temperature=0.8,
            seed=14,
            presence_penalty=0.8,
            frequency_penalty=0.4,
            repetition_penalty=1.1,
            **free,
        ),
        _completion("logprobs", prompt="The land is", temperature=1, seed=15, logprobs=3, **free),
        _completion("long prompt", prompt=STORY * 30, temperature=0, **free),
    ]


def stop_string(text: str) -> str:
    """A piece that a text has in its second half only: several tokens, of which the last completes it."""
    half = len(text) // 2
    # A long one where the text repeats itself.
    pieces = (text[begin : begin + size] for size in (9, 18, 36, 72) for begin in range(half, len(text) - size))
    return next(piece for piece in pieces if text.index(piece) >= half)


def _completion(name: str, **fields: Any) -> Request:
    return Request(name, "/v1/completions", {**fields, **STREAMED})


def _chat(name: str, question: str, **fields: Any) -> Request:
    messages = [{"role": "user", "content": question}]
    return Request(name, "/v1/chat/completions", {"messages": messages, "temperature": 1, **fields, **STREAMED})


class Choice:
    """What a stream has told of one choice."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.logprobs: list[Any] = []
        self.finish: str | None = None


class Transcript:
    """All that one request was told, through as many connections as it took.

    `times` has an entry for each event that brought tokens: when it came (`time.monotonic`), and for which choice.
    """

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.usage: dict[str, int] | None = None
        self.error = ""
        self.ended = False
        self.last_id = ""
        self.times: list[tuple[float, int]] = []
        self._id = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(len(choice.tokens) for choice in self.choices.values())

    def begin_connection(self) -> None:
        """What came of an event before the connection broke is void: it will be told again."""
        self._id = ""

    def feed(self, line: str) -> None:
        """One line of the body; an event counts once its data has come, and its id only with it."""
        if line.startswith("id: "):
            self._id = line[4:]
        elif line.startswith("data: "):
            self._event(line[6:])
            self.last_id = self._id

    def feed_whole(self, body: bytes) -> None:
        """The body of an answer that was not streamed."""
        self._answer(json.loads(body))
        self.ended = True

    def _event(self, data: str) -> None:
        if data == "[DONE]":
            self.ended = True
        else:
            self._answer(json.loads(data))

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if "error" in answer:
            self.error = answer["error"]["message"]
            return
        self.usage = counts(answer.get("usage")) or self.usage
        for told in answer["choices"]:
            self._choice(told)

    def _choice(self, told: Mapping[str, Any]) -> None:
        choice = self.choices.setdefault(told["index"], Choice())
        said = told.get("delta") or told.get("message") or {"content": told.get("text")}
        choice.text += said.get("content") or ""
        for call in said.get("tool_calls") or ():  # Its id is drawn for each answer.
            choice.text += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
        choice.finish = told["finish_reason"] or choice.finish
        if tokens := told.get("token_ids"):
            choice.tokens += tokens
            self.times.append((time.monotonic(), told["index"]))
        if logprobs := told.get("logprobs"):
            columns = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs"))
            choice.logprobs += zip(*columns, strict=True)

    def has_had_since(self, instant: float, num_events: int) -> bool:
        """Whether each choice that goes on has had so many events since then."""
        since = [choice for when, choice in self.times if when > instant]
        return bool(self.ended or self.error) or (
            bool(self.choices)
            and all(
                choice.finish is not None or since.count(index) >= num_events for index, choice in self.choices.items()
            )
        )

    def was_under_way(self, instant: float) -> bool:
        """Whether a token had come by then, and one was still to come."""
        return bool(self.times) and self.times[0][0] < instant < self.times[-1][0]


def counts(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    """What must be equal of two usages: how many tokens were found in a cache depends on who came before."""
    return usage and {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


class Difference(NamedTuple):
    """What sets a transcript apart from its twin: tokens, and whatever else is not equal."""

    lost: int = 0
    repeated: int = 0
    others: tuple[str, ...] = ()


def compare(twin: Transcript, seen: Transcript, *, is_cut: bool = False) -> Difference:
    """Hold a transcript against its twin; one that is cut, its client having left, has to begin as its twin does."""
    lost = repeated = 0
    others: list[str] = []
    for index in twin.choices.keys() | seen.choices.keys():
        ours, theirs = seen.choices.get(index, Choice()), twin.choices.get(index, Choice())
        missing, surplus = lost_and_repeated(theirs.tokens[: len(ours.tokens) if is_cut else None], ours.tokens)
        lost += missing
        repeated += surplus
        pairs: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {
            "text": (ours.text, theirs.text),
            "logprobs": (ours.logprobs, theirs.logprobs),
        }
        others += [name for name, (our, their) in pairs.items() if (their[: len(our)] if is_cut else their) != our]
        if not is_cut and ours.finish != theirs.finish:
            others.append(f"finish {ours.finish}, not {theirs.finish}")
    if not is_cut and seen.usage != twin.usage:
        others.append(f"usage {seen.usage}, not {twin.usage}")
    if not is_cut and not seen.ended:
        others.append("no end")
    if seen.error:
        others.append(seen.error)
    return Difference(lost, repeated, tuple(others))


def lost_and_repeated(twin: Sequence[int], seen: Sequence[int]) -> tuple[int, int]:
    """Tokens of the twin's that a stream has not had, and tokens that it had and its twin did not."""
    if twin == seen:
        return 0, 0
    matcher = difflib.SequenceMatcher(None, twin, seen, autojunk=False)
    matched = sum(block.size for block in matcher.get_matching_blocks())
    return len(twin) - matched, len(seen) - matched


class Streams:
    """The requests, all at once, each read by a thread of its own from when this is made."""

    def __init__(self, address: str, requests: Sequence[Request]) -> None:
        self.transcripts = [Transcript() for _ in requests]
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(address, request, transcript))
            for request, transcript in zip(requests, self.transcripts, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds, looked at after every event; gives False where all have ended before."""
        with self._changed:
            found = self._changed.wait_for(lambda: holds() or self._all_ended(), PATIENCE)
            assert found, "streams gave neither what was waited for nor an end"
            return not self._all_ended()

    def num_events(self) -> int:
        """Events with tokens, of all streams."""
        return sum(len(transcript.times) for transcript in self.transcripts)

    def join(self) -> list[Transcript]:
        """Wait for all ends."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a stream did not end"
        return self.transcripts

    def _all_ended(self) -> bool:
        return all(transcript.ended or transcript.error for transcript in self.transcripts)

    def _read(self, address: str, request: Request, transcript: Transcript) -> None:
        try:
            with httpx.stream("POST", address + request.path, json=request.body, timeout=PATIENCE) as response:
                if response.status_code != httpx.codes.OK:
                    raise httpx.HTTPError(f"{response.status_code}: {response.read().decode()}")
                for line in response.iter_lines():
                    with self._changed:
                        transcript.feed(line)
                        self._changed.notify_all()
        except httpx.HTTPError as error:
            transcript.error = repr(error)
        with self._changed:
            if not transcript.ended:
                transcript.error = transcript.error or "the stream has no end"
            self._changed.notify_all()


def num_under_way(instants: Sequence[float], transcripts: Sequence[Transcript]) -> int:
    """How many of these instants had at least one token emitted and one owed."""
    return sum(any(transcript.was_under_way(instant) for transcript in transcripts) for instant in instants)
