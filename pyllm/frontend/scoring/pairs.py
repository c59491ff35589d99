"""Pairs of texts as token ids: as the tokenizer joins them, or in a reranker's own template."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from pyllm.client.prompt_tokens import PromptTokens, known_tokens
from pyllm.client.submission import refuse_input
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.frontend.text.truncation import Truncation
from pyllm.wire.messages import ModelInfo

# Of all pairs of a request, whose query counts once for each document.
MAX_CHARACTERS = 1 << 25
_QUERY, _DOCUMENT = "{query}", "{document}"

T = TypeVar("T")


class Pairs(NamedTuple):
    """One text with each of `seconds`, or as many texts as those, in order; `names` are the fields of both."""

    firsts: Sequence[str]
    seconds: Sequence[str]
    names: tuple[str, str] = ("data_1", "data_2")

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """The two texts of each pair."""
        return zip(self.spread(self.firsts), self.seconds, strict=True)

    def spread(self, of_firsts: Sequence[T]) -> Sequence[T]:
        """The first text's share of each pair."""
        return of_firsts if len(of_firsts) == len(self.seconds) else [*of_firsts] * len(self.seconds)

    def check(self) -> None:
        """Refuse texts that make no pairs.

        Raises:
            RequestError: the numbers of texts do not fit, there are none, or they are too long together.
        """
        firsts, seconds = len(self.firsts), len(self.seconds)
        if not firsts or not seconds or firsts not in {1, seconds}:
            text = f"give one text and some others, or as many texts twice, got {firsts} and {seconds}"
            raise RequestError(text, self.names[bool(firsts)])
        characters = sum(len(first) + len(second) for first, second in self.texts)
        if characters > MAX_CHARACTERS:
            text = f"{seconds} pairs of texts have {characters} characters together; at most {MAX_CHARACTERS} are read"
            raise RequestError(f"{text}: send fewer pairs, or shorter texts", self.names[1])


class PairEncoder:
    """The encoder of one model's pairs. A chat template for the roles query and document replaces the model's own.

    Raises:
        ConfigError: there is such a template, and it does more with the texts than to put them in their places.
    """

    def __init__(
        self, prompts: PromptEncoder, tokenizer: Tokenizer, model: ModelInfo, chat_template: ChatTemplate | None
    ) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._model = model
        self._template = model.pair_template
        if model.labels and chat_template is not None:
            self._template = _of_pairs(chat_template) or model.pair_template

    async def encode_apart(self, pairs: Pairs, truncation: Truncation | None) -> list[Sequence[Sequence[int]]]:
        """The token ids of the first texts and of the second ones, each an input of its own; raises as `encode`."""
        encoded = []
        for name, texts in zip(pairs.names, pairs[:2], strict=True):
            with _about(name):
                inputs = await self._prompts.encode_inputs(texts, truncation)
                for index, tokens in enumerate(inputs):
                    self._check_length(tokens, index, len(inputs))
            encoded.append(inputs)
        return encoded

    async def encode(self, pairs: Pairs, truncation: Truncation | None) -> list[PromptTokens]:
        """The token ids of each pair, shortened by a `truncation`.

        Raises:
            RequestTooLargeError: a pair does not fit the context, and is not shortened.
            RequestError: a text is no Unicode, or what is around the texts leaves no room for them.
        """
        if self._template is not None:
            with _about(pairs.names[1]):
                return await self._in_template(self._template, pairs, truncation)
        too_long, encoded = None if truncation else refuse_input, []
        for name, texts in zip(pairs.names, pairs[:2], strict=True):
            with _about(name):
                encoded.append(await self._prompts.encode(texts, False, too_long, "input"))
        firsts, seconds = pairs.spread(encoded[0]), encoded[1]
        num_tokens = sum(map(len, firsts)) + sum(map(len, seconds))
        with _about(pairs.names[1]):
            return await self._prompts.run(num_tokens, self._joined, firsts, seconds, truncation)

    def _joined(
        self, firsts: Sequence[PromptTokens], seconds: Sequence[PromptTokens], truncation: Truncation | None
    ) -> list[PromptTokens]:
        frame, offset = self._tokenizer.pair_frame, self._model.second_text_offset
        before, between, after = (_moved(part, offset) for part in frame.around)
        joined = []
        for index, pair in enumerate(zip(firsts, seconds, strict=True)):
            first, second = pair if truncation is None else truncation.kept_of_pair(*pair, frame.num_tokens)
            moved = _moved([(token, frame.second_type) for token in second], offset)
            tokens = PromptTokens(before + array("i", first).tobytes() + between + moved + after)
            self._check_length(tokens, index, len(seconds))
            joined.append(tokens)
        return joined

    async def _in_template(self, template: str, pairs: Pairs, truncation: Truncation | None) -> list[PromptTokens]:
        encoded = []
        for index, (query, document) in enumerate(pairs.texts):
            before, _, after = (part.replace(_QUERY, query) for part in template.partition(_DOCUMENT))
            with RequestError.of_item(index, len(pairs.seconds)):
                (tokens,) = await self._encoded([f"{before}{document}{after}"], truncation)
                if truncation is not None and len(tokens) > truncation.limit:
                    around, inner, end = await self._encoded([before, document, after], truncation)
                    kept, _ = truncation.kept_of_pair(inner, (), len(around) + len(end))
                    tokens = known_tokens([*around, *kept, *end], self._model.vocab_size, "input")
            self._check_length(tokens, index, len(pairs.seconds))
            encoded.append(tokens)
        return encoded

    async def _encoded(self, texts: list[str], truncation: Truncation | None) -> list[PromptTokens]:
        return await self._prompts.encode(texts, False, None if truncation else refuse_input, "input")

    def _check_length(self, tokens: Sequence[int], index: int, number: int) -> None:
        if len(tokens) > self._model.max_model_len:
            with RequestError.of_item(index, number):
                raise refuse_input(len(tokens), self._model)


def _of_pairs(chat_template: ChatTemplate) -> str | None:
    """The text of a template around a query and a document; None where it knows no such roles.

    Most rerankers made of text models still have the template of that model, which is not meant for pairs.
    """
    roles = ("query", "document")
    if not all(f"'{role}'" in chat_template.source or f'"{role}"' in chat_template.source for role in roles):
        return None
    texts = []
    for query, document in ((_QUERY, _DOCUMENT), (f" {_QUERY}\n", f"\n{_DOCUMENT} ")):
        messages = [{"role": role, "content": text} for role, text in zip(roles, (query, document), strict=True)]
        try:
            texts.append(chat_template.render(messages))
        except RequestError as error:
            raise ConfigError(f"{error}; they were a query and a document, whose roles it names") from None
    plain, padded = texts
    if plain.replace(_QUERY, f" {_QUERY}\n").replace(_DOCUMENT, f"\n{_DOCUMENT} ") != padded:
        raise ConfigError("the chat template changes the query or the document, which is not supported for pairs")
    if plain.count(_DOCUMENT) != 1:
        raise ConfigError(f"the chat template has the document {plain.count(_DOCUMENT)} times, and must have it once")
    return plain


def _moved(tokens: Iterable[tuple[int, int]], offset: int) -> bytes:
    """Packed ids of tokens with their types: those of type 1 are `offset` further on."""
    return array("i", (token + kind * offset for token, kind in tokens)).tobytes()


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Call the field of errors in this block by its name."""
    try:
        yield
    except RequestError as error:
        error.name_fields({"input": name, "prompt": name})
        raise
