"""Truncation of prompts: which tokens to keep. Knows no text and no route."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pyllm.errors import RequestError
from pyllm.parameters.arguments import check
from pyllm.wire.messages import ModelInfo

Side = Literal["left", "right"]


class Truncation(NamedTuple):
    """A cut to at most `limit` tokens, which drops the tokens on the `side`."""

    limit: int
    side: Side

    def kept(self, tokens: Sequence[int], around: Sequence[int] = ()) -> Sequence[int]:
        """The tokens of a prompt that stay. Special tokens `around` a text, as in BERT, stay at both of its ends."""
        if len(tokens) <= self.limit:
            return tokens
        rest = self.limit - 1
        if self.side == "left":
            first = [*tokens[:1]] if rest and around and tokens[0] == around[0] else []
            return [*first, *tokens[-(self.limit - len(first)) :]]
        last = [*tokens[-1:]] if rest and around and tokens[-1] == around[-1] else []
        return [*tokens[: self.limit - len(last)], *last]

    def kept_of_pair(
        self, first: Sequence[int], second: Sequence[int], num_around: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The tokens of two texts that stay beside `num_around` others.

        The longer one loses tokens until both are equally long, then both do (`longest_first` of transformers).

        Raises:
            RequestError: there is no room for a token of each.
        """
        room = self.limit - num_around
        if room < bool(first) + bool(second):
            text = f"truncate_prompt_tokens {self.limit} leaves no room for the texts beside {num_around} other tokens"
            raise RequestError(text, "truncate_prompt_tokens")
        short = min(len(first), len(second), room // 2)
        shares = (short, room - short) if len(first) <= len(second) else (room - short, short)
        return self._replace(limit=shares[0]).kept(first), self._replace(limit=shares[1]).kept(second)


def truncation_from(limit: int | None, side: Side | None, num_reserved: int, model: ModelInfo) -> Truncation | None:
    """The truncation that the fields `truncate_prompt_tokens` and `truncation_side` ask for, or None.

    A limit of -1 stands for the model's context length less `num_reserved` tokens.

    Raises:
        RequestError: the limit is out of its range, or there is a side without one.
    """
    if limit is None:
        if side is not None:
            raise RequestError("truncation_side goes with truncate_prompt_tokens only", "truncation_side")
        return None
    most = model.max_model_len
    check("truncate_prompt_tokens", limit, limit == -1 or 0 < limit <= most, f"-1, or from 1 to {most}")
    usual: Side = "left" if model.can_generate else "right"
    return Truncation(max(most - num_reserved, 1) if limit == -1 else limit, side or usual)
