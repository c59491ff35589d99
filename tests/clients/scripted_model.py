"""pyllm's frontend over a core that answers from a script: every route, parser and template, but no model.

It has the tokenizer and the chat template of the embedded model, and room for the long prompts of coding agents.
"""

import msgspec

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.frontend.chat.parsers.parser_selection import parsers_of, reasoning_form
from pyllm.frontend.chat.parsers.reasoning_parsers import THINK
from pyllm.frontend.chat.template_traits import template_traits
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL, ScriptedCore, connected
from tests.clients.call_forms import in_form
from tests.clients.script import Script
from tests.frontend.tiny_checkpoint import tiny_checkpoint

NAME = "scripted"
MAX_MODEL_LEN = 200_000


async def scripted_state(script: Script, name: str = NAME, template: ChatTemplate | None = None) -> ServerState:
    """What the routes need, over a core that answers by this script; close its `client` in the end.

    `template` replaces the embedded model's. Calls of the script are written as its model writes them.
    """
    files = read_checkpoint().tokenizer
    tokenizer = Tokenizer(files)
    template = template or ChatTemplate.of(files)
    assert template is not None
    parsers = parsers_of(template.source, template_traits(template, True).tools, "auto", "auto")
    form = THINK if parsers.reasoning == "none" else reasoning_form(parsers.reasoning)

    def tokens(prompt: list[int], sample: int) -> list[int]:
        del sample
        asked = tokenizer.decode(prompt, skip_special_tokens=False)
        text = in_form(script.answer(asked), parsers.tool_call)
        if form.openings and asked.rstrip().endswith(form.openings):
            text = f"{form.closings[0]}\n\n{text}"
        return [*tokenizer.encode(text, add_special_tokens=False), files.eos_token_ids[0]]

    model = msgspec.structs.replace(
        MODEL,
        name=name,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_tokens=4 * MAX_MODEL_LEN,
        num_blocks=4 * MAX_MODEL_LEN // MODEL.block_size,
        vocab_size=tokenizer.max_token_id + 1,
        eos_token_ids=files.eos_token_ids,
        max_num_seqs=64,
    )
    client = await connected(ScriptedCore(tokens, model))
    return ServerState(client, tokenizer, template, name, checkpoint=tiny_checkpoint())
