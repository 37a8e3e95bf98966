"""TLS contexts: of the server, and for connections to the database."""

import ssl
from pathlib import Path

from mainspring.config import Config
from mainspring.errors import ConfigError

_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def server_context(config: Config) -> ssl.SSLContext | None:
    """Return the server's certificate and what it asks of clients; None: plain HTTP."""
    if config.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, _no_password)
        if config.tls_client_ca is not None:
            context.load_verify_locations(config.tls_client_ca)
            required = config.tls_client_required
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError([f"tls_certificate, tls_key or tls_client_ca: {problem}"]) from problem
    return context


def database_context(config: Config) -> ssl.SSLContext | None:
    """Return what the database must show: a certificate of these authorities for its name."""
    if config.database_ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=config.database_ca)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError([f"database_ca: {problem}"]) from problem


def _no_password() -> str:
    raise ConfigError(["tls_key is encrypted: give a key without a password"])


def machine_authorities() -> str | None:
    """Return the path of the authorities that this machine trusts: the bundled library may have
    been built for another path."""
    found = ssl.get_default_verify_paths().cafile
    return found or next((path for path in _AUTHORITIES if Path(path).exists()), None)
