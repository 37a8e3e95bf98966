"""The single truth: PostgreSQL, one module per aggregate, the SQL itself in queries/*.sql."""
