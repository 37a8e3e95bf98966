"""PostgreSQL itself: pools, named SQL, migrations, the doctor, the embedded server."""
