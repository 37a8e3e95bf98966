"""A certificate authority for tests, and certificates signed by it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Test authority")
        usage = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = (
            _builder("Test authority", self._name, self._key.public_key())
            .add_extension(usage, critical=True)
            .sign(self._key, SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(Encoding.PEM)

    def identity(self, name: str, address: str = "127.0.0.1") -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        certificate = (
            _builder(name, self._name, key.public_key())
            .add_extension(names, critical=False)
            .sign(self._key, SHA256())
        )
        return Identity(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
