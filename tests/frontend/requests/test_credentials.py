"""Keys and certificates that are read again while a server runs."""

import asyncio
import json
import shutil
import ssl
from pathlib import Path

import pytest

from pyllm.config.api_keys import KeyRing, flag_keys, new_key, read_api_keys
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.frontend.requests.credentials import Credentials
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.certificates import self_signed
from tests.frontend.serving import answering, in_process


def write_keys(path: Path, *entries: str) -> None:
    path.write_text(json.dumps({"keys": [json.loads(entry) for entry in entries]}))
    path.chmod(0o600)


async def test_the_route_reads_keys_again_tells_the_others_and_a_broken_file_changes_nothing(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    (admin, admin_entry), (old, old_entry), (new, new_entry) = (
        new_key(name, role)  # type: ignore[arg-type]
        for name, role in (("boss", "admin"), ("default", "user"), ("newcomer", "user"))
    )
    write_keys(path, admin_entry, old_entry)
    flags = flag_keys(["of-a-flag"])
    keys, asked = KeyRing(read_api_keys(str(path), {}) + flags, flags), []
    server = ServerConfig(api_key_file=str(path))
    options = {"server": server, "keys": keys, "ask_reload": lambda: asked.append(1)}
    async with in_process(answering(tokenizer, "ok"), tokenizer, **options) as frontend:

        async def status(key: str, method: str = "GET", route: str = "/v1/models") -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await frontend.http.request(method, route, headers=headers)).status_code

        assert [await status(key) for key in (admin, old, new, "of-a-flag")] == [200, 200, 401, 200]
        write_keys(path, admin_entry, new_entry)
        assert await status(old, "POST", "/admin/reload") == 403
        assert await status(admin, "POST", "/admin/reload") == 200
        assert [await status(key) for key in (admin, old, new, "of-a-flag")] == [200, 401, 200, 200]
        path.write_text("{")
        headers = {"Authorization": f"Bearer {admin}"}
        refused = await frontend.http.post("/admin/reload", headers=headers)
        assert refused.status_code == 400
        assert "keys and certificates stay as they are: cannot read the API keys" in refused.text
        assert [await status(key) for key in (admin, new)] == [200, 200]
    assert asked == [1]


async def test_connections_that_come_later_see_the_new_certificate(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    cert, key = self_signed(first)
    other_cert, other_key = self_signed(second)
    expected = ssl.PEM_cert_to_DER_cert((second / "certificate.pem").read_text())
    credentials = Credentials(ServerConfig(ssl_certfile=cert, ssl_keyfile=key), KeyRing())
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=credentials.tls)

    async def shown() -> bytes | None:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=trust)
        found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async with server:
        before = await shown()
        shutil.copy(other_cert, cert)
        with pytest.raises(ConfigError, match="cannot use the certificate"):
            credentials.reload()  # Its key is the old one's yet.
        assert await shown() == before
        shutil.copy(other_key, key)
        credentials.reload()
        assert await shown() == expected
        assert await shown() != before
