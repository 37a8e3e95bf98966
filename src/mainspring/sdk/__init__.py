"""What users import: clients, apps with their tasks, the worker, helpers for tests."""
