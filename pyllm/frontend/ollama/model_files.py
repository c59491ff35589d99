"""`/api/show` of a model that no engine has loaded, from its files. Loads no weights, downloads nothing."""

from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.model_name import HubName, parse_model
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.frontend.chat.parsers.parser_selection import parsers_of
from pyllm.frontend.chat.template_traits import template_traits
from pyllm.frontend.ollama.model_details import Abilities, shown_model
from pyllm.frontend.ollama.protocol import Shown
from pyllm.frontend.text.fill_in_the_middle import can_fill_middle
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer


class AbsentModelError(ConfigError):
    """A model of the hub that is not on this machine."""


def show_files(model: str, download_dir: str = "", max_model_len: int | None = None) -> Shown:
    """The description of a model on this machine, with the parsers that a server chooses by itself.

    Raises:
        AbsentModelError: it has to be downloaded first.
        ConfigError: it cannot be read.
    """
    hub = Hub(cache_dir=download_dir or None, offline=True)
    if isinstance(place := parse_model(model) if model else None, HubName):
        try:
            find_model(place, hub)
        except ConfigError:
            raise AbsentModelError(f"{model} is not on this machine: `pyllm pull {model}` downloads it") from None
    checkpoint = read_checkpoint(model, hub)
    template = ChatTemplate.of(checkpoint.tokenizer)
    can_generate = not checkpoint.embedding.is_only_use
    tools = thinking = False
    if can_generate and template is not None:
        with_tools = template.for_tools(True)
        parsers = parsers_of(with_tools.source, template_traits(with_tools, True).tools, "auto", "auto")
        tools, thinking = parsers.tool_call != "none", parsers.reasoning != "none"
    abilities = Abilities(
        completion=can_generate,
        embedding=not checkpoint.embedding.labels,
        tools=tools,
        thinking=thinking,
        insert=can_generate and can_fill_middle(Tokenizer(checkpoint.tokenizer)),
    )
    source = "" if template is None else template.source
    length = max_model_len or checkpoint.spec.max_position_embeddings
    return shown_model(checkpoint, length, checkpoint.sampling, source, abilities)
