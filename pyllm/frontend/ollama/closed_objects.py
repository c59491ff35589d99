"""Closes the objects of a format, as Ollama does: they have the properties that the schema names, and no others.

Programs made for Ollama rely on it: a small model adds properties until the answer is cut off.
"""

from typing import Any

# The keywords whose value is a schema, a list of schemas, or an object of them.
_ONE = ("items", "additionalProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
# These say more about an object, beside its `properties` and beside one another.
_MORE = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties", "unevaluatedProperties"}
)


def close_objects(schema: dict[str, Any]) -> None:
    """Forbid further properties, in place, wherever the schema does not speak of them.

    A schema that puts objects together anywhere stays as it is, as a whole: each part would forbid the properties of
    the others, and those that are required without being named.
    """
    todo: list[Any] = [schema]
    objects = []
    for node in todo:  # which grows meanwhile
        if not isinstance(node, dict):
            continue
        if _puts_together(node):
            return
        if (named := node.get("properties")) and isinstance(named, dict):
            objects.append(node)
        todo += [node.get(key) for key in _ONE]
        for key in _LISTS:
            todo += each if isinstance(each := node.get(key), list) else ()
        for key in _NAMED:
            todo += each.values() if isinstance(each := node.get(key), dict) else ()
    for node in objects:
        node.setdefault("additionalProperties", False)


def _puts_together(node: dict[str, Any]) -> bool:
    """Whether an object of this schema has properties that a part of the schema does not name."""
    parts, named, required = node.get("allOf"), node.get("properties"), node.get("required")
    if isinstance(parts, list) and len(parts) > 1:
        return True
    if len(_MORE & node.keys()) + bool(named or required) > 1:
        return True
    return isinstance(named, dict) and isinstance(required, list) and any(name not in named for name in required)
