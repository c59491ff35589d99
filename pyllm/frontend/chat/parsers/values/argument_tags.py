"""The tags around names, keys and values of tool calls, one entry a model family. Knows no machine that reads them."""

import re
from typing import NamedTuple

_NAME = re.compile(r"<[^\s<>=:]+")


class Tags(NamedTuple):
    """The tags around a name, a key and a value.

    Without `after_name` a name ends with its line, or before a tag. With `lines` a value stands on lines of its own.
    Where `text_key` or `json_key` follows a key in place of `after_key`, the value is text, or JSON. With
    `several` calls share the section around them. With `alone` a call may stand without a section.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    before_value: str
    after_value: str
    end: str
    lines: bool = False
    text_key: str = ""
    json_key: str = ""
    several: bool = False
    alone: bool = False

    @property
    def key_stem(self) -> str:
        """The beginning of the tag before a key, malformed ones included: `<parameter` of `<parameter=`."""
        match = _NAME.match(self.before_key)
        return match[0] if match else self.before_key


QWEN = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", lines=True, alone=True)
GLM = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "")
MINIMAX = Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>", several=True)
HUNYUAN = Tags(
    "<tool_call:opensource>",
    "<tool_sep:opensource>",
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "</tool_call:opensource>",
    several=True,
)
DSML = "\uff5cDSML\uff5c"  # DeepSeek's own prefix of tags
DEEPSEEK = Tags(
    f'<{DSML}invoke name="',
    '">',
    f'<{DSML}parameter name="',
    '">',
    "",
    f"</{DSML}parameter>",
    f"</{DSML}invoke>",
    text_key='" string="true">',
    json_key='" string="false">',
    several=True,
)
