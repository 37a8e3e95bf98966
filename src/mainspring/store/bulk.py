"""Changes of many tasks at once: `workflows.bulk_cancel` makes them."""

from mainspring.postgres import named_sql as queries

SQL = queries.load("bulk")
