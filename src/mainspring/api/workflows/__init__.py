"""/v1/workflows and /v1/workflow-runs."""
