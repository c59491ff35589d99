from pyllm.frontend.edge.cors import Cors

ORIGIN = b"https://a.com"


def test_methods_and_headers_are_as_configured() -> None:
    cors = Cors(["https://a.com"], ["GET", "PUT"], ["x-a", "x-b"])
    headers = dict(cors.preflight(b"x-c"))
    assert headers[b"access-control-allow-methods"] == b"GET, PUT"
    assert headers[b"access-control-allow-headers"] == b"x-a, x-b"
    assert b"access-control-allow-credentials" not in dict(cors.headers(ORIGIN))


def test_with_credentials_the_headers_that_are_asked_for_are_named() -> None:
    """A star would be a header of that name then."""
    cors = Cors(["https://a.com"], has_credentials=True)
    assert dict(cors.headers(ORIGIN))[b"access-control-allow-credentials"] == b"true"
    assert b"access-control-allow-credentials" not in dict(cors.headers(b"https://b.com"))
    assert dict(cors.preflight(b"x-c"))[b"access-control-allow-headers"] == b"x-c"
    assert dict(Cors(["https://a.com"]).preflight(b"x-c"))[b"access-control-allow-headers"] == b"*, authorization"
