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

    def kept(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens of a prompt that stay."""
        if len(tokens) <= self.limit:
            return tokens
        return tokens[-self.limit :] if self.side == "left" else tokens[: self.limit]


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
    return Truncation(max(most - num_reserved, 1) if limit == -1 else limit, side or "left")
