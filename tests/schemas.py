"""Two hundred JSON schemas in the shapes that people ask for: forty families, five variants of each.

Every string, array and number has bounds, so that a document that follows one at random ends within some 250 tokens.
"""

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
Family = Callable[[int], Schema]

NUM_VARIANTS = 5

SEMVER = r"^(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})$"
SLUG = r"^[a-z0-9]{1,12}(-[a-z0-9]{1,12}){0,3}$"
PHONE = r"^\+[1-9][0-9]{6,13}$"
COLOUR = r"^#[0-9a-f]{6}$"
IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]{0,20}$"
CURRENCY = r"^[A-Z]{3}$"


def text(longest: int = 20, shortest: int = 0) -> Schema:
    return {"type": "string", "maxLength": longest} | ({"minLength": shortest} if shortest else {})


def pattern(expression: str) -> Schema:
    return {"type": "string", "pattern": expression}


def form(name: str) -> Schema:
    return {"type": "string", "format": name}


def integer(least: int = 0, most: int = 100) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def money(most: int = 10_000) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": most, "multipleOf": 0.01}


def choice(*values: Any) -> Schema:
    return {"enum": list(values)}


def named_by(names: str, values: Schema, most: int) -> Schema:
    """An object whose names are not known before."""
    return {
        "type": "object",
        "patternProperties": {names: values},
        "additionalProperties": False,
        "maxProperties": most,
    }


def array(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "maxItems": most} | ({"minItems": least} if least else {})


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def record(optional: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object that has these and nothing else, all of them but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


FLAG: Schema = {"type": "boolean"}


def person(v: int) -> Schema:
    named = record(first=text(10 + v, 1), last=text(12), age=integer(0, 120 + v))
    named["properties"] |= {"email": pattern(r"^[a-z]{1,10}@[a-z]{1,10}\.(com|org|net)$"), "member": FLAG}
    return named | {"title": f"Person {v}"}


def address(v: int) -> Schema:
    countries = ["DE", "FR", "US", "IN", "BR", "JP"][: 2 + v]
    return record(("unit",), street=text(24), unit=text(4), city=text(16), country=choice(*countries), zip=zip_code(v))


def zip_code(v: int) -> Schema:
    return pattern(
        [r"^[0-9]{5}$", r"^[0-9]{5}(-[0-9]{4})?$", r"^[A-Z][0-9][A-Z] [0-9][A-Z][0-9]$", r"^[0-9]{4,6}$", "^0$"][v]
    )


def point(v: int) -> Schema:
    degrees = {"type": "number", "multipleOf": 0.001}
    place = record(
        latitude=degrees | {"minimum": -90, "maximum": 90}, longitude=degrees | {"minimum": -180, "maximum": 180}
    )
    return place if v == 0 else record(("label",), label=text(5 * v), at=place)


def geometry(v: int) -> Schema:
    pair = {"type": "array", "prefixItems": [integer(-180, 180), integer(-90, 90)], "items": False, "minItems": 2}
    shapes = [
        record(type={"const": "Point"}, coordinates=pair),
        record(type={"const": "LineString"}, coordinates=array(pair, 3 + v, 2)),
        record(type={"const": "Polygon"}, coordinates=array(array(pair, 4, 3), 2, 1)),
    ]
    return {"anyOf": shapes[: 2 + v % 2]} if v else shapes[0]


def product(v: int) -> Schema:
    return record(
        ("tags", "discount"),
        sku=pattern(rf"^[A-Z]{{2,{3 + v}}}-[0-9]{{4}}$"),
        name=text(20, 1),
        price=money(1000 * (v + 1)),
        discount={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        tags=array(pattern(SLUG), v + 1),
    )


def order(v: int) -> Schema:
    line = record(sku=pattern(r"^[A-Z0-9]{6}$"), quantity=integer(1, 10 * (v + 1)), price=money())
    return record(id=integer(1, 999_999), lines=array(line, 2 + v % 3, 1), paid=FLAG, total=money(100_000))


def event(v: int) -> Schema:
    when = [
        form("date"),
        form("date-time"),
        form("time"),
        pattern(r"^20[0-9]{2}-W[0-5][0-9]$"),
        integer(0, 2_000_000_000),
    ][v]
    return record(("where", "guests"), title=text(20), starts=when, where=text(12), guests=array(text(10), 3))


def manifest(v: int) -> Schema:
    named = record(("scripts",), name=pattern(SLUG), version=pattern(SEMVER), license=choice("MIT", "Apache-2.0", None))
    named["properties"] |= {"dependencies": named_by(SLUG, pattern(SEMVER), 1 + v), "private": FLAG}
    return named | {"required": ["name", "version", "dependencies"][: 3 - v % 3]}


def parameter(v: int) -> Schema:
    kind = {"anyOf": [{"const": "string"}, {"const": "integer"}, {"const": "boolean"}][: 1 + v % 3]}
    return record(
        ("example",),
        name=pattern(IDENTIFIER),
        required=FLAG,
        schema=record(type=kind),
        example=text(5 + v),
        **{"in": choice("query", "path", "header", "cookie")},
    )


def invoice(v: int) -> Schema:
    taxes = choice(0, 0.07, 0.19, 0.25)
    item = record(text=text(16), net=money(), tax=taxes)
    return record(
        number=pattern(rf"^R{v}-[0-9]{{6}}$"), due=form("date"), items=array(item, 2, 1), currency=pattern(CURRENCY)
    )


def recipe(v: int) -> Schema:
    part = record(name=text(12), amount=integer(1, 500), unit=choice("g", "ml", "piece", "tsp")) if v % 2 else text(14)
    return record(title=text(18), serves=integer(1, 4 + v), parts=array(part, 3, 1), steps=array(text(24), 2 + v // 2))


def weather_call(v: int) -> Schema:
    arguments = record(("unit", "days"), city=text(16, 1), unit=choice("celsius", "fahrenheit"), days=integer(1, 7 + v))
    return record(
        name={"const": ["get_weather", "forecast", "get_current_weather", "climate", "sky"][v]}, arguments=arguments
    )


def tool_call(v: int) -> Schema:
    tools = {
        "search": record(query=text(20), limit=integer(1, 50)),
        "read": record(path=pattern(r"^(/[a-z]{1,8}){1,4}$")),
        "add": record(a=integer(-99, 99), b=integer(-99, 99)),
        "ask": record(question=text(24), choices=array(text(8), 3)),
        "stop": record(),
    }
    names = list(tools)[v:] + list(tools)[:v]
    return {"anyOf": [record(tool={"const": name}, input=tools[name]) for name in names[: 2 + v % 3]]}


def log_line(v: int) -> Schema:
    levels = ["debug", "info", "warning", "error", "critical"]
    return record(
        ("trace",), at=form("date-time"), level=choice(*levels[v:], "other"), message=text(30), trace=form("uuid")
    )


def tree(v: int) -> Schema:
    """A tree of a few levels, each a definition of its own."""
    value = [integer(0, 9), text(6), FLAG, choice("a", "b"), nullable(integer(0, 9))][v]
    levels = {
        f"level{depth}": record(value=value, nodes=array({"$ref": f"#/$defs/level{depth + 1}"}, 2))
        for depth in range(2)
    }
    return {"$defs": levels | {"level2": record(value=value)}, "$ref": "#/$defs/level0"}


def linked(v: int) -> Schema:
    """A list that ends after some links, or before."""
    links = {
        f"link{i}": record(item=integer(0, 10**v), rest=nullable({"$ref": f"#/$defs/link{i + 1}"}))
        for i in range(2 + v)
    }
    return {"$defs": links | {f"link{2 + v}": record(item=FLAG)}, "$ref": "#/$defs/link0"}


def row(v: int) -> Schema:
    """A tuple."""
    cells = [text(8), integer(0, 999), FLAG, {"type": "null"}, pattern(COLOUR), choice(1, "one")]
    cells = cells[v:] + cells[:v]
    return {"type": "array", "prefixItems": cells[: 3 + v % 3], "items": False, "minItems": 3 + v % 3}


def rows(v: int) -> Schema:
    header = {"type": "array", "prefixItems": [pattern(IDENTIFIER)] * (2 + v), "items": False, "minItems": 2 + v}
    cells = {"type": "array", "items": integer(0, 99), "minItems": 2 + v, "maxItems": 2 + v}
    return record(header=header, rows=array(cells, 3))


def mixed(v: int) -> Schema:
    return choice(*["red", 1, 2.5, True, None, [1, 2], {"a": 1}, "blue", -3, ""][v : v + 4 + v])


def constant(v: int) -> Schema:
    return {"const": ["fixed", 42, {"kind": "none", "items": []}, [1, [2, [3]]], None][v]}


def rating(v: int) -> Schema:
    stars = integer(1, 5) if v % 2 else {"type": "number", "minimum": 0, "maximum": 5, "multipleOf": 0.5}
    return record(("why",), stars=stars, why=text(20 + v))


def sentiment(v: int) -> Schema:
    share = {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": [0.1, 0.01, 0.05, 0.25, 0.001][v]}
    return record(label=choice("positive", "neutral", "negative"), score=share)


def extraction(v: int) -> Schema:
    kinds = ["person", "place", "organisation", "date", "product"][: 2 + v % 4]
    found = record(text=text(14), kind=choice(*kinds), start=integer(0, 500), end=integer(0, 500 + v))
    return record(entities=array(found, 3))


def answer(v: int) -> Schema:
    return record(
        reasoning=array(text(30), 1 + v, 1), answer=[text(20), integer(), FLAG, choice("A", "B", "C", "D"), money()][v]
    )


def quiz(v: int) -> Schema:
    asked = record(question=text(24), options=array(text(8), 4, 2), correct=integer(0, 3))
    return record(topic=text(10 + v), questions=array(asked, 1 + v % 2, 1))


def colours(v: int) -> Schema:
    channel = integer(0, 255)
    forms = [pattern(COLOUR), record(r=channel, g=channel, b=channel), array(channel, 3, 3), choice("red", "teal")]
    return record(name=pattern(SLUG), value={"anyOf": forms[: v + 1]}) if v < 4 else array(pattern(COLOUR), 5, 1)


def contact(v: int) -> Schema:
    ways = {
        "phone": pattern(PHONE),
        "email": form("email") | {"maxLength": 24},
        "host": form("ipv4"),
        "site": form("uuid"),
    }
    return record(tuple(list(ways)[: v % 4]), name=text(12), **ways) | {"description": f"Variant {v}"}


def server(v: int) -> Schema:
    port = integer(1, 65_535)
    return record(
        ("tls",), host=form("ipv4"), port=port, tls=record(cert=text(12), strict=FLAG), retries=integer(0, v + 1)
    )


def settings(v: int) -> Schema:
    nested: Schema = integer(0, v)
    for depth in range(v + 2):
        nested = record(**{f"level_{depth}": nested})
    return nested


def optional(v: int) -> Schema:
    fields = {f"field_{i}": [FLAG, integer(0, 9), text(4)][i % 3] for i in range(3 + v)}
    return record(tuple(fields), **fields)


def scores(v: int) -> Schema:
    return record(
        scores=named_by(r"^[a-z]{1,8}$", [integer(0, 9), FLAG, text(6), nullable(FLAG), pattern(COLOUR)][v], 2 + v)
    )


def diff(v: int) -> Schema:
    path = pattern(r"^(/[a-z]{1,6}){1,3}$")
    steps = [
        record(op={"const": "add"}, path=path, value=integer(0, 9)),
        record(op={"const": "remove"}, path=path),
        record(op={"const": "move"}, path=path, **{"from": path}),
        record(op={"const": "test"}, path=path, value=nullable(text(6))),
    ]
    return array({"anyOf": steps[: 2 + v % 3]}, 2 + v, 1)


def schedule(v: int) -> Schema:
    days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    hours = pattern(r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    return record(tuple(days[: v + 1]), **{day: array(hours, 2, 2) for day in days[: v + 3]})


def translation(v: int) -> Schema:
    languages = ["de", "fr", "pt-BR", "ja", "sw", "hi"][: v + 2]
    return record(source=choice(*languages), texts=record(**{name: text(10) for name in languages[:3]}))


def commit(v: int) -> Schema:
    sha = pattern(rf"^[0-9a-f]{{{8 + 8 * v}}}$")
    return record(
        ("parents",), sha=sha, parents=array(sha, 2), message=text(30), author=record(name=text(12), at=form("date"))
    )


def measurement(v: int) -> Schema:
    value = {"type": "number", "exclusiveMinimum": -50 - v, "exclusiveMaximum": 50 + v, "multipleOf": 0.25}
    return record(sensor=form("uuid"), values=array(value, 4 + v, 1), unit=choice("°C", "K", "µm", "Ω", "%"))


def game(v: int) -> Schema:
    square = pattern(r"^[a-h][1-8]$")
    move = record(("capture",), piece=choice("K", "Q", "R", "B", "N", "P"), start=square, to=square, capture=FLAG)
    return array(move, 2 + v % 3, 1) if v % 2 else record(turn=integer(1, 100 + v), move=move)


def union(v: int) -> Schema:
    return {
        "type": [
            ["string", "null"],
            ["integer", "boolean"],
            ["boolean", "null"],
            ["string", "integer", "null"],
            ["array", "null"],
        ][v]
    } | {
        "maxLength": 12,
        "minimum": -5,
        "maximum": 5,
        "items": FLAG,
        "maxItems": 4,
    }


def playlist(v: int) -> Schema:
    track = record(
        ("artist",),
        title=text(12),
        artist=text(10),
        seconds={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 600},
    )
    return record(name=text(10 + v), public=FLAG, tracks=array(track, 1 + v % 3))


def flight(v: int) -> Schema:
    airport, number = pattern(CURRENCY), pattern(rf"^[A-Z]{{2}}[0-9]{{{1 + v % 4},4}}$")
    leg = record(number=number, start=airport, to=airport, gate=nullable(pattern(r"^[A-F][0-9]{1,2}$")))
    return record(legs=array(leg, 2, 1), seat=pattern(r"^[1-9][0-9]?[A-K]$"), fare=choice(*"YMJFC"[: v + 1]))


FAMILIES: list[Family] = [
    person, address, point, geometry, product, order, event, manifest, parameter, invoice,
    recipe, weather_call, tool_call, log_line, tree, linked, row, rows, mixed, constant,
    rating, sentiment, extraction, answer, quiz, colours, contact, server, settings, optional,
    scores, diff, schedule, translation, commit, measurement, game, union, playlist, flight,
]  # fmt: skip

SCHEMAS: list[Schema] = [family(v) for family in FAMILIES for v in range(NUM_VARIANTS)]
