"""Keys and certificates that are read again while a server runs."""

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from pyllm.config.api_keys import KeyRing, flag_keys, new_key
from pyllm.config.credentials import read_credentials
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.certificates import self_signed
from tests.frontend.serving import answering, behind_uvicorn, in_process


def write_keys(path: Path, *entries: str) -> None:
    path.write_text(json.dumps({"keys": [json.loads(entry) for entry in entries]}))
    path.chmod(0o600)


def two_certificates(folder: Path) -> tuple[tuple[str, str], tuple[str, str]]:
    for name in ("first", "second"):
        (folder / name).mkdir()
    return self_signed(folder / "first"), self_signed(folder / "second")


def text_of(*files: str) -> str:
    return "".join(Path(file).read_text() for file in files)


async def test_the_route_reads_keys_again_tells_the_others_and_a_broken_file_changes_nothing(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    (admin, admin_entry), (old, old_entry), (new, new_entry) = (
        new_key(name, role)  # type: ignore[arg-type]
        for name, role in (("boss", "admin"), ("default", "user"), ("newcomer", "user"))
    )
    write_keys(path, admin_entry, old_entry)
    asked: list[int] = []
    server = ServerConfig(api_key_file=str(path))
    options = {"server": server, "keys": KeyRing(flag_keys(["of-a-flag"])), "ask_reload": lambda: asked.append(1)}
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


def test_a_key_of_a_flag_stays_when_it_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, entry = new_key("default")
    write_keys(path, entry)
    server = ServerConfig(api_key_file=str(path))
    credentials = ServerCredentials(server, read_credentials(server, flag_keys([key])))
    write_keys(path, new_key("another")[1])
    credentials.reload()
    assert credentials.keys.find(key.encode()) is not None


async def test_connections_that_come_later_see_the_new_certificate(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (cert, key), (other_cert, other_key) = two_certificates(tmp_path)
    expected = ssl.PEM_cert_to_DER_cert(text_of(other_cert))
    server = ServerConfig(ssl_certfile=cert, ssl_keyfile=key)
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        credentials = frontend.state.credentials

        async def shown() -> bytes:
            async with httpx.AsyncClient(verify=False) as http:
                url = f"https://localhost:{frontend.address[1]}/version"
                async with http.stream("GET", url) as answer:
                    assert answer.status_code == 200
                    found: bytes = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(True)
                    return found

        before = await shown()
        shutil.copy(other_cert, cert)
        with pytest.raises(ConfigError, match="cannot use the certificate"):
            credentials.reload()  # Its key is the old one's yet.
        assert await shown() == before
        shutil.copy(other_key, key)
        credentials.reload()
        assert await shown() == expected != before


@pytest.mark.parametrize("version", ["tls1_2", "tls1_3"])
async def test_a_ca_that_was_taken_out_is_believed_no_more(tokenizer: Tokenizer, tmp_path: Path, version: str) -> None:
    """Nor is a session that one of its clients has kept."""
    (cert, key), (other_cert, _) = two_certificates(tmp_path)
    authorities, session = tmp_path / "ca.pem", tmp_path / "session"
    authorities.write_text(text_of(cert, other_cert))
    server = ServerConfig(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=str(authorities))
    async with behind_uvicorn(answering(tokenizer, "ok"), tokenizer, server=server) as frontend:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{frontend.address[1]}", f"-{version}", "-quiet"]
        command += ["-cert", cert, "-key", key, "-CAfile", cert]

        async def answered(*options: str) -> bool:
            request = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            said = await asyncio.to_thread(subprocess.run, [*command, *options], input=request, capture_output=True)
            return b"200 OK" in said.stdout

        assert await answered("-sess_out", str(session))
        assert await answered("-sess_in", str(session))
        authorities.write_text(text_of(other_cert))
        frontend.state.credentials.reload()
        assert not await answered()
        assert not await answered("-sess_in", str(session))
