"""`mainspring tenants`, `mainspring keys` and `mainspring operator-key`."""

from typing import Annotated, Any

import typer

from mainspring.cli.output import Format, Output, show, show_one
from mainspring.cli.running import call, load_config, run
from mainspring.sdk.calling import part
from mainspring.sdk.encoding import present

tenants = typer.Typer(help="Tenants, with an operator's key.", no_args_is_help=True)
keys = typer.Typer(help="Keys of a tenant, with an admin's key.", no_args_is_help=True)
operator_key = typer.Typer(help="Operators' keys, in the database.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Its name.")]
_KeyName = Annotated[str | None, typer.Option(help="A name for people.")]


@tenants.command("create")
def create_tenant(
    name: _Name,
    weight: Annotated[int | None, typer.Option(help="Its share against others' (1).")] = None,
    max_running: Annotated[int | None, typer.Option(help="Maximum of running tasks.")] = None,
    spread: Annotated[int | None, typer.Option(help="Partitions that share the limit.")] = None,
    output: Output = Format.table,
) -> None:
    """Create a tenant, and show its first key this once."""
    body = present(name=name, weight=weight, max_running=max_running, spread=spread)
    show_one(call("POST", "/v1/tenants", body), output)


@tenants.command("list")
def list_tenants(output: Output = Format.table) -> None:
    """List all tenants, newest first."""
    columns = ("id", "name", "weight", "max_running", "spread", "created_at")
    show(every("/v1/tenants"), columns, output)


@tenants.command("delete")
def delete_tenant(
    tenant: Annotated[str, typer.Argument(help="Its id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a tenant with everything it owns."""
    if not yes:
        typer.confirm(f"Delete tenant {tenant} and all it owns?", abort=True)
    call("DELETE", f"/v1/tenants/{part(tenant)}")


@keys.command("create")
def create_key(
    scope: Annotated[list[str], typer.Option(help="read, write, work or admin; may be repeated.")],
    name: _KeyName = None,
    expires_in: Annotated[
        str | None, typer.Option(help="Seconds, or ISO 8601 like P30D; without it: never.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Create a key, and show it this once."""
    seconds = float(expires_in) if expires_in and expires_in.isdecimal() else expires_in
    body = present(scopes=scope, name=name, expires_in=seconds)
    show_one(call("POST", "/v1/keys", body), output)


@keys.command("list")
def list_keys(output: Output = Format.table) -> None:
    """List all keys, newest first, those that have ended too."""
    columns = ("id", "prefix", "name", "scopes", "expires_at", "last_used_at", "revoked_at")
    show(every("/v1/keys"), columns, output)


@keys.command("revoke")
def revoke_key(key: Annotated[str, typer.Argument(help="Its id.")]) -> None:
    """Revoke a key now."""
    call("DELETE", f"/v1/keys/{part(key)}")


@keys.command("rotate")
def rotate_key(
    key: Annotated[str, typer.Argument(help="Its id.")],
    grace: Annotated[
        float | None, typer.Option(help="Seconds that the old key stays valid (a day).")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Create a key in place of another, and show it this once."""
    show_one(call("POST", f"/v1/keys/{part(key)}/rotate", present(grace=grace)), output)


@operator_key.command("create")
def create_operator_key(name: _KeyName = None) -> None:
    """Create an operator's key in the database that DATABASE_URL names, and print it this once."""
    from mainspring.wiring import commands

    typer.echo(run(commands.create_operator_key(load_config(), name)))


@operator_key.command("revoke")
def revoke_operator_key(key: Annotated[str, typer.Argument(help="Its id or the key.")]) -> None:
    """Revoke an operator's key, in the database that DATABASE_URL names."""
    from mainspring.wiring import commands

    if not run(commands.revoke_operator_key(load_config(), key)):
        typer.echo("mainspring: there is no such operator's key", err=True)
        raise typer.Exit(1)


def every(path: str) -> list[Any]:
    """Return all items of a list, page after page."""
    items: list[Any] = []
    cursor = None
    while True:
        page = call("GET", path, limit=1000, cursor=cursor)
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items
