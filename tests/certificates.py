"""A certificate for the tests of TLS."""

import subprocess
from pathlib import Path

import pytest


def new_certificate(folder: Path, *addresses: str) -> dict[str, str]:
    """Makes the files of a certificate for localhost and other addresses, and of its key."""
    listed = ",".join(f"IP:{address}" for address in ("127.0.0.1", *addresses))
    names = f"subjectAltName=DNS:localhost,{listed}"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    about = ["-days", "2", "-subj", "/CN=localhost", "-addext", names]
    try:
        subprocess.run([*make, *files, *about], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return {"certfile": str(folder / "cert.pem"), "keyfile": str(folder / "key.pem")}
