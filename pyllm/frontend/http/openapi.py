"""The OpenAPI document, made from the routes of an application and msgspec's schemas of their bodies.

A route whose body has a field `stream` answers with server-sent events, too. Knows no route by name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pyllm.frontend.http.field_descriptions import describe_fields
from pyllm.frontend.http.routing import ResponseSpec, Route, path_format, path_parameters

# In a route's `options`: what its function does not show, the parameters of its query and the schema of its body.
QUERY, BODY = "query", "body"

_COMPONENT = "#/components/schemas/{name}"

Json = dict[str, Any]


def openapi_document(routes: Iterable[Route], version: str, root_path: str = "") -> Json:
    """The document of all routes that are to be in it, in OpenAPI 3.1; their paths are below `root_path`."""
    shown = [route for route in routes if route.include_in_schema]
    bodies = [body for route in shown for body in _bodies(route)]
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_COMPONENT)
    references = dict(zip(bodies, schemas, strict=True))
    for route in shown:
        if route.body is not None:
            name = references[route.body].get("$ref", "").rpartition("/")[2]
            describe_fields(route.body.__name__, components.get(name, {}))
    paths: dict[str, Json] = {}
    for route in shown:
        for path in route.paths:
            for method in route.methods:
                paths.setdefault(path_format(path), {})[method.lower()] = _operation(route, path, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyllm", "version": version},
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "paths": {path: dict(sorted(methods.items())) for path, methods in sorted(paths.items())},
        "components": {"schemas": components},
    }


def _bodies(route: Route) -> list[Any]:
    """The types of a route's request and of its responses, of which None is no body."""
    types = [spec.kind for spec in _responses(route).values()] + [route.body]
    return [kind for kind in types if kind is not None]


def _responses(route: Route) -> Mapping[int, ResponseSpec]:
    responses = dict(route.responses)
    if route.status_code not in responses:
        is_struct = isinstance(route.returned, type) and issubclass(route.returned, Struct)
        responses[route.status_code] = ResponseSpec(route.returned if is_struct else None)
    return responses


def _operation(route: Route, path: str, references: Mapping[Any, Json]) -> Json:
    streams = route.body is not None and "stream" in getattr(route.body, "__struct_fields__", ())
    operation: Json = {
        "summary": route.summary,
        # A route of several paths has one operation for each.
        "operationId": str(route.fn.__name__) if len(route.paths) == 1 else path_format(path).strip("/"),
        "responses": {
            str(status): _response(status, spec, references, streams)
            for status, spec in sorted(_responses(route).items())
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in path_parameters(path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in _query(route).items()]
    if parameters:
        operation["parameters"] = parameters
    if schema := route.options.get(BODY) if route.body is None else references[route.body]:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _query(route: Route) -> dict[str, Json]:
    """The schema of each parameter of the query; all may be left out."""
    found: dict[str, Json] = dict(route.options.get(QUERY, {}))
    for parameter, kind, default in route.query.values():
        found[parameter.name] = msgspec.json.schema(kind) | ({} if default is None else {"default": default})
    return found


def _response(status: int, spec: ResponseSpec, references: Mapping[Any, Json], streams: bool) -> Json:
    response: Json = {"description": _DESCRIPTIONS.get(status, "An error.")}
    content = {}
    if spec.kind is not None:
        content[spec.media_type] = {"schema": references[spec.kind]}
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
