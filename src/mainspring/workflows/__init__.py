"""Use cases of workflows, each with a transaction of its own: advancing runs, releasing steps."""
