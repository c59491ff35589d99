"""Fill in the middle: the prompt for the text between two others, by the tokens of a model's family."""

from collections.abc import Sequence
from typing import NamedTuple

from pyllm.errors import RequestError
from pyllm.frontend.text.sampling_texts import add_stop_tokens
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.sampling_params import SamplingParams


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
# Tokens that begin the next file, and so end the middle.
_STOPS = (
    *("<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>"),
    *("<|fim_repo|>", "<|repo_name|>", "<reponame>", "▁<EOT>"),
)
# Before the name of a repository, and of each of its files.
_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<reponame>")
_FILE = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")
_SNIPPET = "\n\n--- snippet ---\n\n"


def can_fill_middle(tokenizer: Tokenizer) -> bool:
    """Whether the model's vocabulary has tokens to fill in the middle."""
    return _form_of(tokenizer) is not None


def middle_prompt(tokenizer: Tokenizer, before: str, after: str) -> str:
    """The prompt for the gap between two texts.

    Raises:
        RequestError: the model's vocabulary has no tokens for this.
    """
    form = _form_of(tokenizer)
    if form is None:
        text = "suffix: this model's vocabulary has no tokens to fill in the middle, as models for code have"
        raise RequestError(text, "suffix")
    if form.middle:
        return f"{form.prefix}{before}{form.suffix}{after}{form.middle}"
    return f"{form.suffix}{after}{form.prefix}{before}"


def files_prompt(tokenizer: Tokenizer, files: Sequence[tuple[str, str]]) -> str:
    """The text of other files, each a name and a text, that stands before that prompt; the form is llama.cpp's.

    If the family has tokens for it, the text is a repository with these files, the last of which has the middle.
    """
    if not files:
        return ""
    repository, separator = _first_known(tokenizer, _REPOSITORY), _first_known(tokenizer, _FILE)
    header = f"{repository}myproject\n" if repository else ""
    if not separator:
        return header + "".join(f"{_SNIPPET}{text}" for _, text in files)
    return header + "".join(f"{separator}{name}\n{text}" for name, text in [*files, ("filename", "")])


def _form_of(tokenizer: Tokenizer) -> _MiddleTokens | None:
    known = (form for form in _FORMS if all(tokenizer.added_token_id(token) is not None for token in form if token))
    return next(known, None)


def _first_known(tokenizer: Tokenizer, names: Sequence[str]) -> str:
    return next((name for name in names if tokenizer.added_token_id(name) is not None), "")


def add_middle_stops(params: SamplingParams, tokenizer: Tokenizer) -> None:
    """Also stop at the tokens that end the middle, beside those that end the model's other texts."""
    add_stop_tokens(params, tokenizer, _STOPS)
