"""A scripted model's answers: for each prompt the text of one turn. Knows texts only, neither tokens nor HTTP."""

import json
from pathlib import Path

import msgspec


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """One answer, given `repeat` times in a row, and the texts that must all occur in a prompt for it."""

    when: list[str]
    answer: str
    repeat: int = 1


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """Turns in the order of a conversation: the last one whose texts occur in the prompt answers.

    A conversation grows, so that later turns follow earlier ones; a request that is sent again gets the same answer.
    """

    turns: list[Turn] = []
    default: str = "Hello from the script."

    @classmethod
    def read(cls, path: Path) -> "Script":
        """The script in a JSON file.

        Raises:
            msgspec.ValidationError: it is not one.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def answer(self, prompt: str) -> str:
        """The text that this prompt gets."""
        for turn in reversed(self.turns):
            if all(text in prompt or json.dumps(text)[1:-1] in prompt for text in turn.when):  # Some templates quote.
                return turn.answer * turn.repeat
        return self.default
