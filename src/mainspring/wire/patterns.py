"""Patterns that texts in requests must match, and what each of them means in words.

`$` also matches before a final line break; the look-ahead rules that out.
"""

NAME = r"^[A-Za-z0-9_.-]{1,100}(?!\n)$"
LINE = r"^[^\x00-\x1f\x7f]*(?!\n)$"
TEXT = r"^[^\x00]*$"
HANDLER = r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}(?!\n)$"
HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}(?!\n)$"
HEADER_VALUE = r"^[\t\x20-\x7e\x80-\xff]*(?!\n)$"
LABEL_NAME = r"^[^\x00-\x1f\x7f:]{1,100}(?!\n)$"
LABEL_PAIR = r"^[^\x00:]+:[^\x00]*$"
SECRET = r"^[\x21-\x7e]+(?!\n)$"
STEP = r"^[A-Za-z_][A-Za-z0-9_-]{0,99}(?!\n)$"
TENANT = r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}(?!\n)$"
WORKER = r"^(?!node:)[A-Za-z0-9_.:@/-]{1,200}(?!\n)$"
INCARNATION = r"^[A-Za-z0-9_.:@/-]{1,100}(?!\n)$"
ERROR_CODE = r"^[A-Za-z0-9_.:-]{1,100}(?!\n)$"

_WORDS = {
    NAME: "1 to 100 ASCII letters, digits, `_`, `.` or `-`",
    LINE: "one line without control characters",
    TEXT: "a text without U+0000",
    HANDLER: "an ASCII letter, a digit or `_`, and then up to 199 ASCII letters, digits, `_`, `.`, "
    "`:`, `/` or `-`",
    HEADER_NAME: "1 to 200 ASCII letters, digits or any of ! # $ % & ' * + . ^ _ ` | ~ -",
    HEADER_VALUE: "one line of characters up to U+00FF, without control characters other than tabs",
    LABEL_NAME: "1 to 100 characters without `:` and without control characters",
    LABEL_PAIR: "a label's name and its value with `:` between them, without U+0000",
    SECRET: "printable ASCII characters without spaces",
    STEP: "an ASCII letter or `_`, and then up to 99 ASCII letters, digits, `_` or `-`",
    TENANT: "an ASCII letter or a digit, and then up to 99 ASCII letters, digits, spaces, `_`, `.` "
    "or `-`",
    WORKER: "1 to 200 ASCII letters, digits, `_`, `.`, `:`, `@`, `/` or `-`, without `node:` at "
    "the beginning",
    INCARNATION: "1 to 100 ASCII letters, digits, `_`, `.`, `:`, `@`, `/` or `-`",
    ERROR_CODE: "1 to 100 ASCII letters, digits, `_`, `.`, `:` or `-`",
}
_COMPLAINTS = {
    f"Expected `str` matching regex {pattern!r}": f"is not {words}"
    for pattern, words in _WORDS.items()
}


def in_words(complaint: str) -> str:
    """Return msgspec's complaint without regular expressions."""
    return _COMPLAINTS.get(complaint, complaint)
