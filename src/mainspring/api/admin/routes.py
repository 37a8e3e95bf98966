"""The routes of admins and operators: keys, tenants, limits, the cluster, the audit log."""

from collections.abc import Mapping
from random import SystemRandom

from mainspring.api.admin import docs as admin_docs
from mainspring.api.admin.installation import AuditResource, ClusterResource
from mainspring.api.admin.keys import KeyResource
from mainspring.api.admin.tenants import TenantResource
from mainspring.api.http.endpoint import Operation, OperatorOperation, TenantOperation
from mainspring.api.http.key_activity import KeyActivity
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.store.tenants import Administration


def admin_paths(
    config: Config, clock: Clock, books: Administration, activity: KeyActivity
) -> dict[str, Mapping[str, Operation]]:
    """Where a secret is shown, the answer that is kept for who asks again is kept sealed."""
    unpredictable = SystemRandom()
    keys = KeyResource(books.key_ring, activity, clock, config.key_environment, unpredictable)
    tenants = TenantResource(books.tenants, activity, config, unpredictable)
    audit = AuditResource(books.audit)
    cluster = ClusterResource(books.topology, config.overdue_after)
    return {
        "/v1/keys": {
            "GET": TenantOperation("admin", keys.page, admin_docs.LIST_KEYS),
            "POST": TenantOperation("admin", keys.create, admin_docs.CREATE_KEY, secret=True),
        },
        "/v1/keys/{id}": {
            "GET": TenantOperation("admin", keys.one, admin_docs.READ_KEY),
            "DELETE": TenantOperation("admin", keys.revoke, admin_docs.REVOKE_KEY),
        },
        "/v1/keys/{id}/rotate": {
            "POST": TenantOperation("admin", keys.rotate, admin_docs.ROTATE_KEY, secret=True),
        },
        "/v1/limits": {"GET": TenantOperation("admin", tenants.limits, admin_docs.LIMITS)},
        "/v1/audit": {
            "GET": TenantOperation("admin", audit.page, admin_docs.AUDIT, or_operators=audit.whole)
        },
        "/v1/tenants": {
            "GET": OperatorOperation(tenants.page, admin_docs.LIST_TENANTS),
            "POST": OperatorOperation(tenants.create, admin_docs.CREATE_TENANT, secret=True),
        },
        "/v1/tenants/{id}": {
            "GET": OperatorOperation(tenants.one, admin_docs.READ_TENANT),
            "PATCH": OperatorOperation(tenants.edit, admin_docs.EDIT_TENANT),
            "DELETE": OperatorOperation(tenants.delete, admin_docs.DELETE_TENANT),
        },
        "/v1/cluster": {"GET": OperatorOperation(cluster.show, admin_docs.CLUSTER)},
    }
