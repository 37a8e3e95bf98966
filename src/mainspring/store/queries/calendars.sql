-- Calendars: dates on which schedules that name them do not run. Every statement names the tenant.

-- name: change_calendar
UPDATE calendars SET dates = :dates::date[], rev = rev + 1, updated_at = clock_timestamp()
WHERE tenant_id = :tenant_id AND name = :name
RETURNING name, rev, dates, updated_at;

-- name: create_calendar
INSERT INTO calendars (tenant_id, name, dates) VALUES (:tenant_id, :name, :dates::date[])
ON CONFLICT DO NOTHING
RETURNING name, rev, dates, updated_at;

-- name: get_calendar
SELECT name, rev, dates, updated_at FROM calendars WHERE tenant_id = :tenant_id AND name = :name;

-- name: lock_calendar
SELECT name, rev, dates, updated_at FROM calendars WHERE tenant_id = :tenant_id AND name = :name FOR UPDATE;

-- name: list_calendars
SELECT name, rev, dates, updated_at FROM calendars
WHERE tenant_id = :tenant_id AND name > :after ORDER BY name LIMIT :limit;

-- name: calendar_dates
-- The dates of some calendars, and which of the names are known.
SELECT name, dates FROM calendars WHERE tenant_id = :tenant_id AND name = ANY (:names::text[]) FOR KEY SHARE;

-- name: delete_calendar
DELETE FROM calendars c WHERE c.tenant_id = :tenant_id AND c.name = :name
  AND NOT EXISTS (SELECT FROM schedules s WHERE s.tenant_id = :tenant_id AND :name = ANY (s.calendars))
RETURNING c.name;
