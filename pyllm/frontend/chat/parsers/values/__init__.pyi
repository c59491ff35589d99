from .argument_tags import DEEPSEEK, DSML, GLM, HUNYUAN, MINIMAX, QWEN, Tags
from .argument_types import Schema, Schemas, argument_json, property_names, types_of
from .json_scanner import CLOSERS, WHITESPACE, JsonScanner
from .json_strings import ObjectScanner, StringDecoder, escaped_json
from .literal_reader import PYTHON, LiteralReader, delimited
from .markers import LiteralMatcher, MarkerFinder
from .tagged_values import Read, TaggedValue

__all__ = [
    "CLOSERS",
    "DEEPSEEK",
    "DSML",
    "GLM",
    "HUNYUAN",
    "MINIMAX",
    "PYTHON",
    "QWEN",
    "WHITESPACE",
    "JsonScanner",
    "LiteralMatcher",
    "LiteralReader",
    "MarkerFinder",
    "ObjectScanner",
    "Read",
    "Schema",
    "Schemas",
    "StringDecoder",
    "TaggedValue",
    "Tags",
    "argument_json",
    "delimited",
    "escaped_json",
    "property_names",
    "types_of",
]
