"""Prompts for loads: natural ones that ship with pyllm, conversations of a ShareGPT-style file, and random words.

Tokenises nothing: the server counts the tokens of a prompt.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from pyllm.bench.bench_defaults import INPUT_TOKENS, OUTPUT_TOKENS, PromptSet
from pyllm.errors import ConfigError

# Each word is one token in most vocabularies, with or without a space before it.
_VOCABULARY = (
    "air area art back body book case change child city class country course day end eye face fact family father field "
    "food form game group hand head history home hour house idea job kind land law level life light line man market "
    "matter member mind month mother music name night number order paper part people person place plan point power "
    "problem process program question reason research result right room school sense service side state story student "
    "study system table team test time type use value view war water way week woman word work world year"
)
WORDS = _VOCABULARY.split()

_NATURAL_PROMPTS = Path(__file__).parent / "natural_prompts.txt"
_HUMAN = ("human", "user")


class Prompt(msgspec.Struct, frozen=True):
    """A text, and the number of tokens to ask for."""

    text: str
    output_tokens: int


class PromptSource(msgspec.Struct, frozen=True):
    """The prompts of a load. Lengths are in tokens; those of random prompts in words, which are nearly tokens.

    With `output_tokens` None the set's default holds: `OUTPUT_TOKENS`, or for ShareGPT the length of the file's
    answers, at four characters per token. `range_ratio` spreads random lengths evenly over `length * (1 - ratio)` to
    `length * (1 + ratio)`.
    """

    name: PromptSet = "natural"
    path: Path | None = None
    output_tokens: int | None = None
    input_tokens: int = INPUT_TOKENS
    prefix_tokens: int = 0
    range_ratio: float = 0.0
    seed: int = 0
    first: int = 0  # prompts to skip: those already taken from the same source

    def prompts(self, number: int) -> list[Prompt]:
        """The first `number` prompts, always the same for the same source.

        Raises:
            ConfigError: the file cannot be read, or has no conversation.
        """
        return {"natural": self._natural, "sharegpt": self._sharegpt, "random": self._random}[self.name](number)

    def _natural(self, number: int) -> list[Prompt]:
        texts = [text for text in _NATURAL_PROMPTS.read_text().split("\n\n") if text.strip()]
        return self._cycled(
            [Prompt(" ".join(text.split()), self.output_tokens or OUTPUT_TOKENS) for text in texts], number
        )

    def _sharegpt(self, number: int) -> list[Prompt]:
        assert self.path is not None, "the command line asks for it"
        found = [
            Prompt(question, self.output_tokens or max(1, len(answer) // 4)) for question, answer in _turns(self.path)
        ]
        if not found:
            raise ConfigError(f"{self.path} has no conversation that begins with a question and its answer")
        return self._cycled(found, number)

    def _cycled(self, prompts: list[Prompt], number: int) -> list[Prompt]:
        """Shuffled prompts, repeated when they are used up, with the number of the round in front from the second on.

        Without that number, a repeated prompt would hit the server's prefix cache.
        """
        Random(self.seed).shuffle(prompts)  # noqa: S311  # prompts are no secret
        chosen = []
        for index in range(self.first, self.first + number):
            rounds, place = divmod(index, len(prompts))
            prompt = prompts[place]
            text = f"({rounds + 1}) {prompt.text}" if rounds else prompt.text
            chosen.append(Prompt(text, prompt.output_tokens))
        return chosen

    def _random(self, number: int) -> list[Prompt]:
        prefix = Random(self.seed).choices(WORDS, k=self.prefix_tokens)  # noqa: S311  # as above
        random = Random(f"{self.seed} {self.first}")  # noqa: S311  # as above
        chosen = []
        for _ in range(number):
            words = prefix + random.choices(WORDS, k=self._length(self.input_tokens, random))
            chosen.append(Prompt(" ".join(words), self._length(self.output_tokens or OUTPUT_TOKENS, random)))
        return chosen

    def _length(self, mean: int, random: Random) -> int:
        spread = round(mean * self.range_ratio)
        return max(1, random.randint(mean - spread, mean + spread))


def warm_up_prompts(number: int) -> list[Prompt]:
    """Short prompts that share no prefix with those of any set."""
    return [Prompt(f"Warm-up {index + 1}: say hello.", 4) for index in range(number)]


def _turns(path: Path) -> Iterator[tuple[str, str]]:
    """The first question and answer of each conversation."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--dataset-path {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--dataset-path {path} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise ConfigError(f"--dataset-path {path} is not a list of conversations, as ShareGPT files are")
    for entry in document:
        turns = _texts(entry)
        if len(turns) > 1 and turns[0][0] in _HUMAN and turns[0][1] and turns[1][1]:
            yield turns[0][1], turns[1][1]


def _texts(entry: Any) -> list[tuple[str, str]]:
    """Speaker and text of the first two turns: `from` and `value` in ShareGPT, elsewhere `role` and `content`."""
    turns = entry.get("conversations") or entry.get("messages") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns[:2]):
        return []
    return [
        (str(turn.get("from") or turn.get("role")), str(turn.get("value") or turn.get("content") or ""))
        for turn in turns[:2]
    ]
