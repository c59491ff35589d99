"""The tags around names, keys and values of tool calls, one entry a model family. Knows no machine that reads them."""

from typing import NamedTuple


class Tags(NamedTuple):
    """What stands around a name, a key and a value.

    Without `after_name` a name ends with its line, or before a tag. With `lines` a value stands on lines of its own.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    before_value: str
    after_value: str
    end: str
    lines: bool = False


QWEN = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", lines=True)
GLM = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "")
MINIMAX = Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>")
