"""`POST /invocations`, the only route that SageMaker calls: calls another route by the body's fields, as in vLLM."""

from collections.abc import Mapping
from typing import cast

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import Request, Route, post
from pyllm.frontend.requests.json_request import decoded


def invocations_route(routes: Mapping[str, Route]) -> Route:
    """The route. It calls one of `routes`, each named by a field that only its bodies have."""

    @post("/invocations", include_in_schema=False)
    async def invoke(request: Request) -> ASGIApp:
        # Only names: no value is decoded before its type is known.
        names = await decoded(request, dict[str, msgspec.Raw])
        route = next((route for field, route in routes.items() if field in names), None)
        if route is None:
            text = (
                "give messages for a chat, prompt for a completion, input for embeddings or classes, or query for ranks"
            )
            raise RequestError(text, "messages")
        return cast("ASGIApp", await route.fn(request=request, data=await decoded(request, route.body)))

    return invoke
