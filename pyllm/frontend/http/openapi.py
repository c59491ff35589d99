"""The OpenAPI document, made from the routes of an application and msgspec's schemas of their bodies.

A route whose body has a field `stream` answers with server-sent events, too. Knows no route by name.
"""

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Annotated, Any, get_args

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.routes import HTTPRoute
from msgspec import Struct

from pyllm.frontend.http.field_descriptions import describe_fields

# In a handler's `opt`: what its signature does not show, the parameters of its query and the schema of its body.
QUERY, BODY = "query", "body"

_COMPONENT = "#/components/schemas/{name}"

Json = dict[str, Any]


def openapi_document(routes: Iterable[object], version: str, root_path: str = "") -> Json:
    """The document of all routes that are to be in it, in OpenAPI 3.1; their paths are below `root_path`."""
    operations = [
        (route, handler)
        for route in routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.include_in_schema is not False and "OPTIONS" not in handler.http_methods
    ]
    bodies = [body for _, handler in operations for body in _bodies(handler)]
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_COMPONENT)
    references = dict(zip(bodies, schemas, strict=True))
    for _, handler in operations:
        if handler.parsed_data_field is not None:
            name = references[handler.parsed_data_field.annotation].get("$ref", "").rpartition("/")[2]
            describe_fields(handler.parsed_data_field.annotation.__name__, components.get(name, {}))
    paths: dict[str, Json] = {}
    for route, handler in operations:
        for method in sorted(handler.http_methods):
            paths.setdefault(route.path_format, {})[method.lower()] = _operation(route, handler, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyllm", "version": version},
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "paths": {path: dict(sorted(methods.items())) for path, methods in sorted(paths.items())},
        "components": {"schemas": components},
    }


def _bodies(handler: HTTPRouteHandler) -> list[Any]:
    """The types of a route's request and of its responses, of which None is no body."""
    types = [spec.data_container for spec in _responses(handler).values()]
    if handler.parsed_data_field is not None:
        types.append(handler.parsed_data_field.annotation)
    return [kind for kind in types if kind is not None]


def _responses(handler: HTTPRouteHandler) -> Mapping[int, ResponseSpec]:
    responses = dict(handler.responses or {})
    returned = handler.parsed_return_field.annotation
    if handler.status_code not in responses:
        is_struct = isinstance(returned, type) and issubclass(returned, Struct)
        responses[handler.status_code] = ResponseSpec(returned if is_struct else None)
    return responses


def _operation(route: HTTPRoute, handler: HTTPRouteHandler, references: Mapping[Any, Json]) -> Json:
    body = None if handler.parsed_data_field is None else handler.parsed_data_field.annotation
    streams = body is not None and "stream" in getattr(body, "__struct_fields__", ())
    operation: Json = {
        "summary": handler.summary,
        # A handler of several paths has one operation for each.
        "operationId": str(handler.fn.__name__) if len(handler.paths) == 1 else route.path_format.strip("/"),
        "responses": {
            str(status): _response(status, spec, references, streams)
            for status, spec in sorted(_responses(handler).items())
        },
    }
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.path_parameters
    ]
    query = [{"name": name, "in": "query", "schema": schema} for name, schema in _query(handler).items()]
    if path or query:
        operation["parameters"] = path + query
    if schema := handler.opt.get(BODY) if body is None else references[body]:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _query(handler: HTTPRouteHandler) -> dict[str, Json]:
    """The schema of each parameter of the query; all may be left out."""
    found: dict[str, Json] = dict(handler.opt.get(QUERY, {}))
    for parameter in handler.parsed_fn_signature.parameters.values():
        known = parameter.kwarg_definition
        if isinstance(known, QueryParameter):
            kinds = [kind for kind in get_args(parameter.annotation) if kind is not NoneType] or [parameter.annotation]
            schema = msgspec.json.schema(Annotated[kinds[0], msgspec.Meta(ge=known.ge, le=known.le)])
            default = {} if parameter.default is None else {"default": parameter.default}
            found[known.name or parameter.name] = schema | default
    return found


def _response(status: int, spec: ResponseSpec, references: Mapping[Any, Json], streams: bool) -> Json:
    response: Json = {"description": _DESCRIPTIONS.get(status, "An error.")}
    content = {}
    if spec.data_container is not None:
        content[str(spec.media_type.value if hasattr(spec.media_type, "value") else spec.media_type)] = {
            "schema": references[spec.data_container]
        }
    if streams and status == 200:
        content["text/event-stream"] = {"schema": _EVENT}
    if content:
        response["content"] = content
    return response


_EVENT: Json = {
    "description": "Each event; `data` is JSON, but for OpenAI's last one.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_DESCRIPTIONS = {
    200: "The answer.",
    201: "It was added.",
    202: "It was begun.",
    204: "It was done.",
    400: "The request is wrong.",
    401: "There is no valid API key.",
    404: "There is no such thing.",
    408: "It took too long.",
    409: "Another one runs already.",
    413: "The body is too large.",
    415: "The body is not announced as JSON.",
    422: "The request cannot be processed.",
    429: "There were too many requests.",
    500: "The server failed.",
    503: "The server takes no requests now.",
}
