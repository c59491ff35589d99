"""Mistral's fill in the middle as a struct; its answers are those of chats. Knows names and types, not behaviour."""

from typing import Annotated, Any

import msgspec

from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.protocol import GenerationRequest


class FimRequest(GenerationRequest, kw_only=True):
    """`POST /v1/fim/completions`. The answer fills the gap between `prompt` and `suffix`; without one it goes on."""

    prompt: str
    suffix: str | None = None

    messages: Annotated[Any, unsupported_field("prompt", [])] = None
    tools: Unsupported[list[Any]] = msgspec.field(default_factory=list)
