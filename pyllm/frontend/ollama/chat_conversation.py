"""Turns Ollama's messages, prompts and `think` into a conversation, by way of OpenAI's."""

from collections.abc import Sequence

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import Conversation
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.ollama.protocol import GenerateRequest, OllamaChatRequest, OllamaMessage
from pyllm.frontend.openai import chat_conversation as openai
from pyllm.frontend.openai.protocol import ChatRequest as OpenAIRequest
from pyllm.frontend.openai.tool_protocol import ToolDefinition
from pyllm.frontend.text.json_schemas import Ignore


def conversation_of(request: OllamaChatRequest, ignore: Ignore) -> Conversation:
    """The conversation of a chat. The answer continues a last message of the assistant.

    Raises:
        RequestError: a message cannot be understood, or has pictures.
    """
    messages = request.messages or []
    for index, message in enumerate(messages):
        refuse_unsupported(message, f"messages[{index}].")
        message.reasoning = message.thinking
    last = messages[-1]
    if last.role == "assistant":
        if last.tool_calls:
            raise RequestError("the last message calls a tool; send its result after it", "messages")
        last.prefix = True
    return _conversation(messages, request.tools or [], request.think, ignore)


def conversation_of_prompt(request: GenerateRequest, ignore: Ignore) -> Conversation:
    """The conversation of a prompt, with its system prompt."""
    system = [OllamaMessage(role="system", content=request.system)] if request.system else []
    return _conversation([*system, OllamaMessage(role="user", content=request.prompt)], [], request.think, ignore)


def _conversation(
    messages: Sequence[OllamaMessage], tools: Sequence[ToolDefinition], think: bool | str | None, ignore: Ignore
) -> Conversation:
    body = OpenAIRequest(messages=list(messages), tools=list(tools), think=True if think is None else think)
    if think is True:
        body.chat_template_kwargs = {"enable_thinking": True}
    return openai.conversation_of(body, ignore)
