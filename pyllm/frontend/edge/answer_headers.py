"""Answer headers about the request's body: fields without effect, adjusted messages, an output shorter than asked.

Stands before the routes and behind the record of answers, so that repeated answers have these headers, too.
"""

from collections.abc import Awaitable

from pyllm.frontend.http.asgi import ASGIApp, Message, Receive, Scope, Send
from pyllm.frontend.http.ignored_fields import IGNORED_FIELDS_HEADER, IgnoredFields
from pyllm.frontend.requests.request_context import ADJUSTED_MESSAGES_HEADER, MAX_TOKENS_HEADER, context_in


class AnswerHeaders:
    """An application that adds these headers to answers. `ignored_fields` counts the fields."""

    def __init__(self, app: ASGIApp, ignored_fields: IgnoredFields) -> None:
        self._app = app
        self._ignored_fields = ignored_fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        # Returns the server's coroutine instead of awaiting it: pushed answers drive that one by hand.
        def answer(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                context = context_in(scope)
                headers = list(message["headers"])
                if names := self._ignored_fields.count(context.fields):
                    headers.append((IGNORED_FIELDS_HEADER, names))
                if context.max_tokens is not None:
                    headers.append((MAX_TOKENS_HEADER, b"%d" % context.max_tokens))
                if context.adjusted:
                    headers.append((ADJUSTED_MESSAGES_HEADER, ", ".join(context.adjusted).encode()))
                message["headers"] = headers
            return send(message)

        await self._app(scope, receive, answer)
