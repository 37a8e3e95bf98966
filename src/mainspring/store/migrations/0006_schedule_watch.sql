-- Dead letters say whose occurrence they were, and the watchdog remembers what it has said.
-- Way back: ALTER TABLE dead_letters DROP COLUMN schedule_id, DROP COLUMN nominal_at; ALTER TABLE
-- schedules DROP COLUMN told_for. Older nodes run beside this schema: they name their columns, and
-- all new ones may be empty.

ALTER TABLE dead_letters
    ADD COLUMN schedule_id uuid,
    ADD COLUMN nominal_at  timestamptz;

-- The time that stood undecided when the watchdog told of this schedule last: one event for each.
ALTER TABLE schedules ADD COLUMN told_for timestamptz;
