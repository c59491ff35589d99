"""The ASGI application in front of the application: checks keys, ids, sizes, time limits, origins.

Knows which routes need no key and which store their answers, and nothing else about routes. Costs some ten microseconds
per request; a stream's chunks do not pass through it.
"""

import uuid
from collections.abc import Awaitable
from typing import Any, cast

from pyllm.config.api_keys import Allowance
from pyllm.errors import PyllmError
from pyllm.frontend.edge.body import BODY_PATIENCE, BoundedBody, check_body_size
from pyllm.frontend.edge.browser_origin import BrowserOrigin, is_local_program
from pyllm.frontend.edge.cors import Cors
from pyllm.frontend.edge.error_answer import Headers, render_error
from pyllm.frontend.edge.rate_limit_headers import budget_headers
from pyllm.frontend.edge.served import Served
from pyllm.frontend.http.asgi import ASGIApp, Message, Receive, Scope, Send
from pyllm.frontend.http.failure import AuthenticationError, MediaTypeError, describe
from pyllm.frontend.http.ignored_fields import RequestFields
from pyllm.frontend.http.unknown_routes import normal_path
from pyllm.frontend.page.page_files import is_public
from pyllm.frontend.requests.request_context import CONTEXT, REQUEST_ID, RequestContext
from pyllm.frontend.requests.request_headers import RequestHeaders
from pyllm.frontend.requests.scheduling import least_timeout

# Routes that need no key, as health checks have none.
PROBES = frozenset({"/ping", "/health", "/health/live", "/health/ready", "/health_generate"})
# Methods that change or start something.
UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ADMIN = (
    *("/admin/", "/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/pause", "/resume", "/is_paused", "/sleep", "/wake_up", "/is_sleeping"),
    *("/v1/models/load", "/v1/models/unload", "/v1/models/alias", "/models/load", "/models/unload"),
    *("/api/pull", "/api/delete"),
)
# Charsets that a body may be declared in: that of JSON, and a subset.
CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii"})
# The route whose answers are stored by their ids.
KEPT = "/v1/responses"


class Gateway:
    """Answers requests that must not reach a route, and gives the others their `RequestContext`."""

    def __init__(self, app: ASGIApp, served: Served, body_patience: float = BODY_PATIENCE) -> None:
        server = served.server
        self._app = app
        self._served = served
        self._keys = served.credentials.keys
        self._cors = Cors(
            server.allowed_origins, server.allowed_methods, server.allowed_headers, server.allow_credentials
        )
        self._root_path = server.root_path
        address = "" if server.uds or server.ssl_certfile else server.host
        self._browser = BrowserOrigin(server.allowed_origins, server.allowed_hosts, address)
        self._admin_on_loopback = server.admin_on_loopback
        self._body_patience = body_patience
        self._max_body_bytes = server.max_request_body_bytes
        self._timeout = server.request_timeout or None
        self._unknown_fields = server.unknown_fields
        self._allowance = Allowance(
            server.max_requests_per_minute, server.max_tokens_per_minute, server.max_concurrent_requests
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = RequestHeaders(cast("list[tuple[bytes, bytes]]", scope["headers"]))
        name = head.request_id or uuid.uuid4().hex
        # In the original scope: the request's log does not see the copies below.
        scope[REQUEST_ID] = name
        if (path := normal_path(scope["path"], self._root_path)) != scope["path"]:
            scope = {**scope, "path": path}
        body = BoundedBody(receive, self._max_body_bytes, self._body_patience)
        # A stored answer has an id of ours: a caller may send its own id again, which would replace the answer.
        own = uuid.uuid4().hex if scope["path"].rstrip("/") == KEPT else name
        context = RequestContext(own, head, allowance=self._allowance, fields=RequestFields(self._unknown_fields))
        scope[CONTEXT] = context
        # A resumed answer has the id of the first exchange, and this header that of its own exchange.
        request_id = (b"x-request-id", name.encode())

        # Returns the server's coroutine instead of awaiting it: pushed answers drive that one by hand.
        def answer(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], request_id, *self._headers(context, body)]
            return send(message)

        if scope["method"] == "OPTIONS" and head.is_preflight and self._cors.enabled:
            await _answer(answer, 204, self._cors.preflight(head.asked_headers), b"")
            return
        try:
            head.check_single()
            if is_public(scope["method"], scope["path"]):
                self._browser.check_host(head)
                if not self._keys:
                    self._browser.check_name(head)
            else:
                self._admit(scope, context)
            if scope["method"] == "HEAD":
                # Handled as GET; the server still sees HEAD in its own scope, and leaves the body out.
                scope = {**scope, "method": "GET"}
            with context:
                await self._app(scope, body.receive, answer)
        except PyllmError as error:  # Raised here or around the routes, which answer their own errors.
            failure = describe(error)
            headers, text = render_error(scope["path"], failure, context.request_id)
            await _answer(answer, failure.status, [(b"content-type", b"application/json"), *headers], text)

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        if scope["path"] in PROBES:
            return
        head = context.headers
        self._browser.check_host(head)
        self._identify(scope, context)
        context.timeout = least_timeout(head.timeout, self._timeout)
        context.session, context.data_parallel_rank = head.session, head.data_parallel_rank
        if head.content_encoding:
            text = f"Content-Encoding {head.content_encoding!r:.80} is not supported; send the body as it is."
            raise MediaTypeError(text)
        if head.charset not in CHARSETS:
            raise MediaTypeError(f"The charset {head.charset!r:.80} is not supported; send the body in UTF-8.")
        check_body_size(head.content_length, self._max_body_bytes)

    def _identify(self, scope: Scope, context: RequestContext) -> None:
        """Set the request's tenant, role and allowance."""
        head = context.headers
        presented = head.key
        key = self._keys.find(presented) if presented else None
        is_local_admin = self._admin_on_loopback and is_local_program(scope, head)
        if is_local_admin or (key is not None and key.role == "admin"):
            context.role = "admin"
        if key is not None:
            context.tenant, context.allowance = key.name, key.allowance(self._allowance)
        elif not self._keys:
            self._browser.check_name(head)
            if scope["method"] in UNSAFE:
                self._browser.check_page(head)
            context.tenant = head.tenant
        elif presented or not (is_local_admin and scope["path"].startswith(ADMIN)):
            asked = "Incorrect API key provided." if presented else "You didn't provide an API key."
            raise AuthenticationError(f"{asked} Send one as 'Authorization: Bearer KEY'.")

    def _headers(self, context: RequestContext, body: BoundedBody) -> Headers:
        headers = self._cors.headers(context.headers.origin) if self._cors.enabled else []
        if context.budgets is not None:
            headers += budget_headers(context.budgets)
        # The rest of a stalled body must not be read as a request. And a client of a draining server must not reuse
        # this connection, as proxies do.
        if body.stalled or self._served.draining:
            headers.append((b"connection", b"close"))
        return headers


async def _answer(send: Any, status: int, headers: Headers, body: bytes) -> None:
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
