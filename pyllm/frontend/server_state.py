"""What the routes of one API process share: the engine, the model's texts, the metrics, and what is being answered."""

import asyncio
from collections.abc import Callable

from pyllm.errors import EngineDeadError, PyllmError
from pyllm.frontend.chat_template import ChatTemplate
from pyllm.frontend.client import EngineClient
from pyllm.frontend.conversation import DEFAULT_SETTINGS, ConversationSettings
from pyllm.frontend.conversations import Conversations
from pyllm.frontend.metrics import Metrics
from pyllm.frontend.prompts import PromptEncoder
from pyllm.frontend.responses.store import AsyncResponseStore
from pyllm.frontend.tokenizer import Tokenizer

Fail = Callable[[PyllmError], None]


class ServerState:
    """Made once at start. `chat_template` is None for a model that has none, `responses` where none are stored."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        model_name: str,
        conversations: ConversationSettings = DEFAULT_SETTINGS,
        *,
        responses: AsyncResponseStore | None = None,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.prompts = PromptEncoder(tokenizer, chat_template, client.model)
        self.conversations = Conversations(self.prompts, tokenizer, chat_template, conversations)
        self.model_name = model_name
        self.responses = responses
        self.metrics = Metrics(model_name, client.model)
        self.draining = False
        self._running: set[Fail] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def healthy(self) -> bool:
        """Whether new requests are taken."""
        return self.client.alive and not self.draining

    def enter(self, fail: Fail) -> None:
        """Note that an answer has begun, and how to end it.

        Raises:
            EngineDeadError: the server is shutting down.
        """
        if self.draining:
            raise EngineDeadError("the server is shutting down and takes no new requests")
        self._running.add(fail)
        self._idle.clear()

    def leave(self, fail: Fail) -> None:
        """Note that it has ended."""
        self._running.discard(fail)
        if not self._running:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Take nothing new; give what runs `grace` seconds to finish, then end it with an error."""
        self.draining = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for fail in list(self._running):
                fail(EngineDeadError(f"the server shut down before this request was finished ({grace:g} s)"))
