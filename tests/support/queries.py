"""The files with the statements of the store."""

from pathlib import Path

import mainspring

SOURCES = Path(mainspring.__file__).parent
QUERIES = SOURCES / "store" / "queries"
