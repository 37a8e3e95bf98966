"""The text of an API key: `ms_<environment>_<id>_<secret><checksum>`.

The fixed beginning lets secret scanners find keys that leaked, and says at a glance which
installation a key is for. The checksum tells a typing error, or a scanner's false alarm, from a key
without asking anyone. It is no protection: what protects is the secret.
"""

import re
from dataclasses import dataclass
from random import Random
from zlib import crc32

ENVIRONMENTS = ("dev", "test", "live")

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 10
_SECRET_LENGTH = 32  # 190 bits
_CHECKSUM_LENGTH = 6  # enough for 32 bits
_SHAPE = re.compile(
    rf"ms_(?:{'|'.join(ENVIRONMENTS)})_[0-9A-Za-z]{{{_ID_LENGTH}}}"
    rf"_[0-9A-Za-z]{{{_SECRET_LENGTH + _CHECKSUM_LENGTH}}}"
)


@dataclass(frozen=True, slots=True)
class KeyText:
    """A new key: the whole text, shown once, and the part that may be shown ever after."""

    id: str
    prefix: str
    secret: str

    def __repr__(self) -> str:
        """Show only what anybody may see, for a key may be logged by mistake."""
        return f"KeyText({self.prefix})"


def make(environment: str, rng: Random) -> KeyText:
    """Make a new key. The generator must be unpredictable."""
    key_id = _random(rng, _ID_LENGTH)
    prefix = f"ms_{environment}_{key_id}"
    body = f"{prefix}_{_random(rng, _SECRET_LENGTH)}"
    return KeyText(key_id, prefix, body + checksum(body))


def is_mistyped(text: str) -> bool:
    """Whether this has the shape of a key but cannot be one: a letter is wrong somewhere.

    Keys of any other shape, chosen by a developer, say, have no checksum to be wrong.
    """
    if _SHAPE.fullmatch(text) is None:
        return False
    return checksum(text[:-_CHECKSUM_LENGTH]) != text[-_CHECKSUM_LENGTH:]


def checksum(body: str) -> str:
    """Return the CRC-32 of all that goes before it."""
    number, digits = crc32(body.encode("ascii")), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def _random(rng: Random, length: int) -> str:
    return "".join(rng.choice(_DIGITS) for _ in range(length))
