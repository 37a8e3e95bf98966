"""The tool that takes guards out of the SQL finds them, and takes out no more than one."""

import mutants

SOURCE = """
-- name: read_only
SELECT id FROM tasks WHERE tenant_id = $1;

-- name: claim
WITH node AS (SELECT id FROM nodes WHERE id = $1 AND epoch = $2 FOR KEY SHARE)
UPDATE tasks t SET state = 'running'
FROM pick -- AND state of no importance
WHERE t.id = pick.id AND t.rev = pick.rev
  AND (t.expires_at IS NULL OR t.expires_at > now()) AND EXISTS (
      SELECT FROM workers w WHERE w.name = t.worker)
RETURNING t.fence;
"""


def test_every_guard_is_found_with_its_statement() -> None:
    found = [str(mutant) for mutant in mutants.mutants("engine", SOURCE)]
    assert found == [
        "engine.claim: epoch = $2",
        "engine.claim: t.rev = pick.rev",
        "engine.claim: (t.expires_at IS NULL OR t.expires_at > now())",
        "engine.claim: w.name = t.worker",
        "engine.claim: EXISTS ( SELECT FROM workers w WHERE w.name = t.worker)",
    ]


def test_one_guard_is_taken_out_and_all_else_stays() -> None:
    guard = next(m for m in mutants.mutants("engine", SOURCE) if m.text == "epoch = $2")
    expected = SOURCE.replace("AND epoch = $2 FOR", "AND ( epoch = $2 OR true) FOR")
    assert guard.broken(SOURCE).split() == expected.split()


def test_the_real_queries_have_guards() -> None:
    for file in mutants.FILES:
        source = (mutants.ROOT / mutants.QUERIES / f"{file}.sql").read_text()
        assert list(mutants.mutants(file, source)), file
