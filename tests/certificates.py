"""Certificates for tests of TLS, made by `openssl`."""

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[str, str]:
    """The files of a certificate for localhost, which is its own authority, and of its key."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", key, "-out", certificate)
    subprocess.run(["openssl", *options.split(), *names, *files], check=True, capture_output=True)
    return certificate, key
