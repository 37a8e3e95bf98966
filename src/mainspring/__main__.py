"""`python -m mainspring` is the same as `mainspring`."""

from mainspring.cli.main import app

app()
