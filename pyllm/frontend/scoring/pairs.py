"""Pairs of texts as token ids: as the tokenizer joins them, or in a reranker's own template."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

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
_MARKS = ("\x00query\x00", "\x00document\x00")
# Whatever a template may do with a text would change these: trim, escape, cut, change the case.
_PROBES = tuple(f" <Ab&'\"{name}\n{{{{ x }}}}" + 1000 * "Long " for name in ("One", "Other"))

T = TypeVar("T")


class Pairs(NamedTuple):
    """One text with each of `seconds`, or as many texts as those, in order; `names` are the fields of both."""

    firsts: Sequence[str]
    seconds: Sequence[str]
    names: tuple[str, str] = ("data_1", "data_2")

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """The two texts of each pair."""
        return zip(self.for_each(self.firsts), self.seconds, strict=True)

    def for_each(self, of_firsts: Sequence[T]) -> Sequence[T]:
        """Repeat what belongs to the one first text for each pair."""
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
        ConfigError: there is such a template, and it does more with the texts than to put them in their places; or
            there is none, and the tokenizer of a reranker joins no pairs.
    """

    def __init__(
        self, prompts: PromptEncoder, tokenizer: Tokenizer, model: ModelInfo, chat_template: ChatTemplate | None
    ) -> None:
        self._prompts = prompts
        self._model = model
        self._template = model.pair_template
        if model.labels and chat_template is not None:
            self._template = _of_pairs(chat_template, model.pair_variables) or model.pair_template
        needs_frame = model.relevant_class is not None and self._template is None
        self._frame = tokenizer.pair_frame if needs_frame else None
        if self._frame is not None and model.second_text_offset and not self._frame.has_types_of_bert:
            raise ConfigError("the tokenizer gives pairs other token types than 0 and 1, which are not supported")

    async def encode_apart(self, pairs: Pairs, truncation: Truncation | None) -> list[Sequence[Sequence[int]]]:
        """The token ids of the first texts and of the second ones, each an input of its own; raises as `encode`."""
        encoded = []
        for name, texts in zip(pairs.names, pairs[:2], strict=True):
            with _about(name):
                inputs = await self._prompts.encode_inputs(texts, truncation)
                self._check_lengths(inputs)
            encoded.append(inputs)
        return encoded

    async def encode(self, pairs: Pairs, truncation: Truncation | None) -> Sequence[PromptTokens]:
        """The token ids of each pair, shortened by a `truncation`.

        Raises:
            RequestTooLargeError: a pair does not fit the context, and is not shortened.
            RequestError: a text is no Unicode, or what is around the texts leaves no room for them.
        """
        one, other = pairs.names
        with _about(one):
            of_query = await self._encoded(pairs.firsts, truncation)
            if truncation is None:
                self._check_lengths(of_query)
        with _about(other):
            if self._template is not None:
                encoded = await self._in_template(self._template, pairs, truncation)
            else:
                firsts, seconds = pairs.for_each(of_query), await self._encoded(pairs.seconds, truncation)
                num_tokens = sum(map(len, firsts)) + sum(map(len, seconds))
                encoded = await self._prompts.run(num_tokens, self._joined, firsts, seconds, truncation)
            self._check_lengths(encoded)
        return encoded

    def _joined(
        self, firsts: Sequence[PromptTokens], seconds: Sequence[PromptTokens], truncation: Truncation | None
    ) -> list[PromptTokens]:
        assert self._frame is not None
        frame, offset = self._frame, self._model.second_text_offset
        before, between, after = (_packed(part, offset) for part in frame.around)
        joined = []
        for pair in zip(firsts, seconds, strict=True):
            first, second = pair if truncation is None else truncation.kept_of_pair(*pair, frame.num_tokens)
            moved = _packed([(token, frame.types[1]) for token in second], offset)
            joined.append(PromptTokens(before + array("i", first).tobytes() + between + moved + after))
        return joined

    async def _in_template(self, template: str, pairs: Pairs, truncation: Truncation | None) -> list[PromptTokens]:
        before, _, after = template.partition(_DOCUMENT)
        framed = [
            [before.replace(_QUERY, query), document, after.replace(_QUERY, query)] for query, document in pairs.texts
        ]
        encoded = await self._encoded(list(map("".join, framed)), truncation)
        if truncation is None:
            return encoded
        long = [index for index, tokens in enumerate(encoded) if len(tokens) > truncation.limit]
        parts = await self._encoded([part for index in long for part in framed[index]], truncation)
        cut = await self._prompts.run(sum(map(len, parts)), self._cut, parts, truncation)
        for index, tokens in zip(long, cut, strict=True):
            encoded[index] = tokens
        return encoded

    def _cut(self, parts: Sequence[PromptTokens], truncation: Truncation) -> list[PromptTokens]:
        """Pairs of three parts each: what is before a document, the document, which loses tokens, what is after it."""
        cut = []
        for before, document, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            kept, _ = truncation.kept_of_pair(document, (), len(before) + len(after))
            cut.append(known_tokens([*before, *kept, *after], self._model.vocab_size, "input"))
        return cut

    async def _encoded(self, texts: Sequence[str], truncation: Truncation | None) -> list[PromptTokens]:
        return await self._prompts.encode(texts, False, None if truncation else refuse_input, "input")

    def _check_lengths(self, encoded: Sequence[Sequence[int]]) -> None:
        for index, tokens in enumerate(encoded):
            if len(tokens) > self._model.max_model_len:
                with RequestError.of_item(index, len(encoded)):
                    raise refuse_input(len(tokens), self._model)


def _of_pairs(chat_template: ChatTemplate, variables: Mapping[str, Any]) -> str | None:
    """The text of a template around a query and a document; None where it knows no such roles.

    Most rerankers made of text models still have the template of that model, which is not meant for pairs.
    """
    roles = ("query", "document")
    if not all(f"'{role}'" in chat_template.source or f'"{role}"' in chat_template.source for role in roles):
        return None
    adds_prompt, texts = bool(variables.get("add_generation_prompt", True)), []
    for contents in (_MARKS, _PROBES):
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            texts.append(chat_template.render(messages, adds_prompt, variables=variables))
        except RequestError as error:
            raise ConfigError(f"{error}; they were a query and a document, whose roles it names") from None
    marked, probed = texts
    if not all(mark in marked for mark in _MARKS) or marked.count(_MARKS[1]) != 1:
        raise ConfigError("the chat template has the roles query and document, but not their texts, the document once")
    if marked.replace(_MARKS[0], _PROBES[0]).replace(_MARKS[1], _PROBES[1]) != probed:
        raise ConfigError("the chat template changes the query or the document, which is not supported for pairs")
    if _QUERY in marked or _DOCUMENT in marked:
        raise ConfigError(f"the chat template has {_QUERY} or {_DOCUMENT} in its own text, which is not supported")
    return marked.replace(_MARKS[0], _QUERY).replace(_MARKS[1], _DOCUMENT)


def _packed(tokens: Iterable[tuple[int, int]], offset: int) -> bytes:
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
