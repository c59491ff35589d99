"""`POST /invocations`, the only route that SageMaker calls: calls another route by the body's fields, as in vLLM."""

from collections.abc import Mapping
from typing import cast

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from pyllm.errors import RequestError
from pyllm.frontend.requests.json_request import JsonRequest, body_type


def invocations_route(routes: Mapping[str, HTTPRouteHandler]) -> HTTPRouteHandler:
    """The route. It calls one of `routes`, each named by a field that only its bodies have."""

    @post("/invocations", status_code=200, include_in_schema=False)
    async def invoke(request: JsonRequest) -> ASGIApp:
        # Only names: no value is decoded before its type is known.
        names = await request.decoded(dict[str, msgspec.Raw])
        route = next((route for field, route in routes.items() if field in names), None)
        if route is None:
            raise RequestError("give messages for a chat, prompt for a completion, or input for embeddings", "messages")
        return cast("ASGIApp", await route.fn(request=request, data=await request.decoded(body_type(route))))

    return invoke
