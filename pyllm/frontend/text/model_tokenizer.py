"""`ModelTokenizer`: the model's tokenizer for programs, with the methods and defaults of transformers' tokenizers.

The engine uses `Tokenizer`. Knows no request.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyllm.checkpoint.types import TokenizerFiles
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.text.templates import ChatTemplate, no_chat_template
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.parameters.arguments import as_list, flag, integer, mapping, refuse, text, texts, token_ids

# Options of a call that change nothing at these values.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "return_tensors": (None,),
    "padding": (False, None, "do_not_pad"),
    "return_token_type_ids": (False, None),
    "return_offsets_mapping": (False,),
    "clean_up_tokenization_spaces": (False, None),
    "return_assistant_tokens_mask": (False,),
}


class BatchEncoding(dict[str, Any]):
    """The result of a call: `input_ids` and `attention_mask`, as keys and as attributes.

    Each is a list of integers; for several texts a list of such lists.
    """

    @property
    def input_ids(self) -> Any:
        """The token ids."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """A 1 for each token."""
        return self["attention_mask"]


class ModelTokenizer:
    """A model's tokenizer; any thread may use it. Special tokens are those that the tokenizer's file calls special.

    It gives lists and never tensors, and does not pad: options that ask for these are refused by name.
    """

    def __init__(self, tokenizer: Tokenizer, files: TokenizerFiles) -> None:
        self._library = tokenizer.library
        self._tokenizer = tokenizer
        self._chat_template = ChatTemplate.of(files)
        self._special = {token for token, added in self._library.get_added_tokens_decoder().items() if added.special}
        self.bos_token, self.eos_token = files.bos_token or None, files.eos_token or None
        self.chat_template = files.chat_template
        self.vocab_size = self._library.get_vocab_size(with_added_tokens=False)
        self.max_token_id = tokenizer.max_token_id
        self.is_fast = True

    def __len__(self) -> int:
        """The number of tokens, added ones included."""
        return self._library.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        truncation: bool | None = None,
        max_length: int | None = None,
        return_attention_mask: bool | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Token ids of a text, or of each of several. With `truncation` the first `max_length` stay.

        Raises:
            RequestError: it is no text, or an option asks for tensors, padding, types or offsets.
        """
        _refuse_options(options)
        limit = None if max_length is None or not truncation else integer("max_length", max_length)
        batch = list(texts("text", [text] if isinstance(text, str) else text))
        ids = [each[:limit] for each in self._encode(batch, flag("add_special_tokens", add_special_tokens))]
        encoded: dict[str, Any] = {"input_ids": ids}
        if return_attention_mask is not False:
            encoded["attention_mask"] = [[1] * len(each) for each in ids]
        return BatchEncoding({name: value[0] if isinstance(text, str) else value for name, value in encoded.items()})

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """The token ids of one text; raises as a call does."""
        if not isinstance(text, str):
            refuse("text", text, "a text")
        ids: list[int] = self(text, add_special_tokens=add_special_tokens, **options)["input_ids"]
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """The text of token ids, or of one id; for a list of lists a list of texts.

        Raises:
            RequestError: an id is not in the vocabulary.
        """
        _refuse_options(options)
        given = as_list(token_ids)
        if isinstance(given, list | tuple) and given and isinstance(as_list(given[0]), list | tuple):
            return self.batch_decode(given, skip_special_tokens)
        ids = self._known([given] if _is_single(given) else given)
        return self._tokenizer.decode(ids, flag("skip_special_tokens", skip_special_tokens))

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **options: Any) -> list[str]:
        """The text of each of several sequences; raises as `decode` does."""
        sequences = as_list(sequences)
        if not isinstance(sequences, list | tuple):
            refuse("sequences", sequences, "a list of lists of token ids")
        return [self.decode(each, skip_special_tokens, **options) for each in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """A conversation, or each of several, as text or, with `tokenize`, as a `BatchEncoding`.

        Without `return_dict` it is the token ids alone. Other keywords are variables of the template.

        Raises:
            RequestError: there is no template, or it refuses the messages, or an option asks for tensors or padding.
        """
        _refuse_options({name: variables.pop(name) for name in _FIXED if name in variables})
        template = self._template(chat_template).for_tools(tools)
        if not isinstance(conversation, list | tuple):
            refuse("conversation", conversation, "a list of dicts with role and content")
        is_batch = bool(conversation) and isinstance(conversation[0], list | tuple)
        names = {**variables, **({} if tools is None else {"tools": tools})}
        rendered = [
            template.render(_messages(each), add_generation_prompt, continue_final_message, names)
            for each in (conversation if is_batch else [conversation])
        ]
        if not tokenize:
            return rendered if is_batch else rendered[0]
        encoded = self(rendered if is_batch else rendered[0], add_special_tokens=False)
        return encoded if return_dict else encoded.input_ids

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`."""
        return None if self.bos_token is None else self._library.token_to_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`; a model may end at others, too."""
        return None if self.eos_token is None else self._library.token_to_id(self.eos_token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of special tokens, ascending."""
        return sorted(self._special)

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, in the order of their ids."""
        return self._tokenizer.token_names(self.all_special_ids)

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, as the vocabulary spells it."""
        return self._library.get_vocab(with_added_tokens=True)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, as the vocabulary spells them."""
        return self._tokenizer.token_names(self.encode(text, add_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or of each of several; None for an unknown token."""
        if isinstance(tokens, str):
            return self._library.token_to_id(tokens)
        return [self._library.token_to_id(token) for token in texts("tokens", tokens)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The vocabulary's spelling of a token, or of each of several."""
        given = as_list(ids)
        if _is_single(given):
            return self._tokenizer.token_names(self._known([given]))[0]
        known = self._known(given)
        return self._tokenizer.token_names(
            [token for token in known if not (skip_special_tokens and token in self._special)]
        )

    def _encode(self, batch: list[str], add_special_tokens: bool) -> list[list[int]]:
        return self._tokenizer.encode_batch(batch, add_special_tokens)

    def _known(self, given: Any) -> Sequence[int]:
        ids = token_ids("token_ids", given)
        for token in ids:
            if not 0 <= token <= self.max_token_id:
                text = f"token id {token} is none of the tokenizer, whose last one is {self.max_token_id}"
                raise RequestError(text, "token_ids")
        return ids

    def _template(self, source: str | None) -> ChatTemplate:
        if source is None:
            if self._chat_template is None:
                raise RequestError(no_chat_template(), "chat_template")
            return self._chat_template
        try:
            return ChatTemplate.of_request(text("chat_template", source), self._chat_template)
        except ConfigError as error:
            raise RequestError(str(error), "chat_template") from None


def _messages(conversation: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(conversation, list | tuple) or not conversation:
        refuse("conversation", conversation, "a list of at least one dict with role and content")
    return [mapping(f"conversation[{index}]", message) for index, message in enumerate(conversation)]


def _is_single(given: Any) -> bool:
    return not isinstance(given, Sequence | set | frozenset)


def _refuse_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _FIXED:
            raise RequestError(f"there is no option {name}; known are {', '.join(_FIXED)}", name)
        if not any(value is known or value == known for known in _FIXED[name]):
            refuse(name, value, f"{_FIXED[name][0]}: token ids are lists, which are not padded")
