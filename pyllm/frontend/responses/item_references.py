"""Replaces references by the stored items. Vercel's AI SDK sends references in place of earlier answers."""

from collections.abc import Iterable, Sequence

from pyllm.errors import RequestError
from pyllm.frontend.responses.items import items_of, responses_of
from pyllm.frontend.responses.protocol import Item
from pyllm.frontend.responses.response_store import ResponseStore

KIND = "item_reference"


async def dereferenced(
    given: str | Sequence[Item], history: Iterable[Item], store: ResponseStore, owner: str
) -> str | Sequence[Item]:
    """The input of a request that continues `history`, with the stored items in place of its references.

    Raises:
        RequestError: an item is not stored, or is in the conversation twice.
    """
    if isinstance(given, str) or not any(map(_is_reference, given)):
        return given
    known = {item.id for item in history}
    stored: dict[str, dict[str, Item]] = {}  # the items of each response that was looked up
    items = []
    for index, item in enumerate(given):
        if not _is_reference(item):
            items.append(item)
            continue
        where, name = f"input[{index}].id", item.id or ""
        if name in known:
            text = f"{where}: the item {name!r:.200} is in the conversation already; leave it out here"
            raise RequestError(text, where)
        known.add(name)
        found = None
        for response_id in responses_of(name):
            if response_id not in stored:
                stored[response_id] = await _items_in(response_id, store, owner)
            found = found or stored[response_id].get(name)
        if found is None:
            text = f"{where}: there is no stored item {name!r:.200}; send the item itself"
            raise RequestError(text, where)
        items.append(found)
    return items


def _is_reference(item: Item) -> bool:
    """Whether an item is a reference; its type may be left out."""
    return item.type == KIND or (item.type is None and item.role is None and item.content is None and bool(item.id))


async def _items_in(response_id: str, store: ResponseStore, owner: str) -> dict[str, Item]:
    record = await store.find(response_id, owner)
    if record is None:
        return {}
    return {item.id: item for item in [*record.input, *items_of(record.response.output)] if item.id is not None}
