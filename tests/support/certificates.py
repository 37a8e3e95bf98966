"""Certificates for tests, made on the spot by the `openssl` program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIG = "[req]\ndistinguished_name = dn\nprompt = no\n[dn]\n"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two PEM files: the certificate, and its key."""

    chain: Path
    key: Path


class Authority:
    """Signs certificates that last for a test."""

    def __init__(self, openssl: Path, directory: Path, name: str) -> None:
        self._openssl = openssl
        self._directory = directory / name
        self._directory.mkdir(parents=True)
        (self._directory / "openssl.cnf").write_text(_CONFIG)
        self._own = self._make(
            name, "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
        )

    @property
    def file(self) -> Path:
        """What one has to trust."""
        return self._own.chain

    def issue(self, name: str, *addresses: str) -> Certificate:
        """A certificate for these names, like `DNS:localhost`, for servers and clients."""
        extensions = ["basicConstraints=CA:FALSE", "authorityKeyIdentifier=keyid"]
        if addresses:
            extensions.append(f"subjectAltName={','.join(addresses)}")
        return self._make(name, *extensions, signer=self._own)

    def _make(self, name: str, *extensions: str, signer: Certificate | None = None) -> Certificate:
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        signing = ("-CA", signer.chain, "-CAkey", signer.key) if signer else ()
        added = [word for extension in extensions for word in ("-addext", extension)]
        subprocess.run(
            [
                *(self._openssl, "req", "-x509", "-config", self._directory / "openssl.cnf"),
                *(*_NEW_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", made.chain),
                *(*signing, *added),
            ],
            check=True,
            capture_output=True,
        )
        return made
