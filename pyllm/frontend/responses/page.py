"""One page of a list of items, selected by `order`, `after` and `limit` as in OpenAI's lists."""

from collections.abc import Mapping
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.responses.protocol import Item, ItemList
from pyllm.parameters.arguments import check

MAX_LIMIT = 100
DEFAULT_LIMIT = 20
# The parameters of the query, for the OpenAPI document.
PAGE_QUERY: Mapping[str, dict[str, Any]] = {
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string", "description": "The id of an item: only those behind it."},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
}


def page_of(items: list[Item], query: Mapping[str, Any]) -> ItemList:
    """The page that a URL's query asks for: the newest items first, unless `order` is `asc`.

    Raises:
        RequestError: a parameter is unknown or out of range.
    """
    for name in query:
        if name not in PAGE_QUERY:
            raise RequestError(f"{name} is not supported; leave it out", name)
    order, after, limit = query.get("order", "desc"), query.get("after"), query.get("limit", str(DEFAULT_LIMIT))
    check("order", repr(order), order in ("asc", "desc"), "asc or desc")
    is_number = isinstance(limit, str) and limit.isascii() and limit.isdigit() and len(limit) < 4
    check("limit", repr(limit), is_number and 1 <= int(limit) <= MAX_LIMIT, f"from 1 to {MAX_LIMIT}")
    listed = items if order == "asc" else items[::-1]
    if after is not None:
        positions = [position for position, item in enumerate(listed, 1) if item.id == after]
        check("after", repr(after), bool(positions), "the id of an item of the list")
        listed = listed[positions[0] :]
    data = listed[: int(limit)]
    ids = [item.id for item in data]
    return ItemList(data, ids[0] if ids else None, ids[-1] if ids else None, len(listed) > len(data))
