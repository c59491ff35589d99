from .ascii_classes import with_ascii_classes
from .beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from .detokenizer import TextDelta
from .encoding_threads import EncodingCounts
from .fill_in_the_middle import can_fill_middle, files_prompt, middle_prompt, middle_stops
from .json_schemas import Ignore, enforced_schema, json_type, warn_once
from .model_tokenizer import ModelTokenizer
from .outputs import OutputFold, Request, RequestOutput, RequestProcessor
from .prompt_encoder import PromptEncoder, RefusePrompt
from .sampling_texts import resolve_texts, resolve_texts_aside, token_forms
from .structured_outputs import JSON_STYLE, grammar_text, resolve_constraint
from .templates import NO_CHAT_TEMPLATE, ChatTemplate, Message
from .text_decoder import TextDecoder
from .tokenizer import Tokenizer
from .truncation import Truncation, truncation_from

__all__ = [
    "JSON_STYLE",
    "NO_CHAT_TEMPLATE",
    "BeamSearchOutput",
    "BeamSearchParams",
    "ChatTemplate",
    "EncodingCounts",
    "Ignore",
    "Message",
    "ModelTokenizer",
    "OutputFold",
    "PromptEncoder",
    "RefusePrompt",
    "Request",
    "RequestOutput",
    "RequestProcessor",
    "TextDecoder",
    "TextDelta",
    "Tokenizer",
    "Truncation",
    "beam_search_output",
    "can_fill_middle",
    "enforced_schema",
    "files_prompt",
    "grammar_text",
    "json_type",
    "middle_prompt",
    "middle_stops",
    "resolve_constraint",
    "resolve_texts",
    "resolve_texts_aside",
    "token_forms",
    "truncation_from",
    "warn_once",
    "with_ascii_classes",
]
