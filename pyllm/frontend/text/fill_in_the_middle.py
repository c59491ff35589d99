"""Fill in the middle: the prompt for the text between two others, by the tokens of a model's family."""

from typing import NamedTuple

from pyllm.errors import RequestError
from pyllm.frontend.text.tokenizer import Tokenizer


class _MiddleTokens(NamedTuple):
    """The tokens of one family. Without `middle` the prefix comes last, as Codestral has it."""

    prefix: str
    suffix: str
    middle: str


# Qwen Coder and CodeGemma, StarCoder and Granite, SantaCoder, DeepSeek Coder, GLM, Codestral.
_FORMS = (
    _MiddleTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    _MiddleTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    _MiddleTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    _MiddleTokens("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    _MiddleTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _MiddleTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),
    _MiddleTokens("[PREFIX]", "[SUFFIX]", ""),
)
# With these the next file begins, so the middle has ended.
_STOPS = (
    *("<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>"),
    *("<|fim_repo|>", "<|repo_name|>", "<reponame>", "▁<EOT>"),
)


def middle_prompt(tokenizer: Tokenizer, before: str, after: str) -> str:
    """The prompt for what stands between two texts.

    Raises:
        RequestError: the model's vocabulary has no tokens for this.
    """
    for form in _FORMS:
        if all(tokenizer.added_token_id(token) is not None for token in form if token):
            if form.middle:
                return f"{form.prefix}{before}{form.suffix}{after}{form.middle}"
            return f"{form.suffix}{after}{form.prefix}{before}"
    text = "suffix: this model's vocabulary has no tokens to fill in the middle, as models for code have; leave it out"
    raise RequestError(text, "suffix")


def middle_stops(tokenizer: Tokenizer) -> list[int]:
    """The ids of the tokens that end what is filled in, whatever ends the model's other texts."""
    return [token for name in _STOPS if (token := tokenizer.added_token_id(name)) is not None]
