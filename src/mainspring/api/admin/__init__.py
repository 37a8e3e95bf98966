"""Keys, tenants, limits, secrets, the cluster, the audit log, and the health of a node."""
