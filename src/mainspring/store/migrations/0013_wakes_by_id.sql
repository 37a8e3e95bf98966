-- Wake rows have names, so that their owner deletes those of which its engine has heard, and no others.
-- Way back: ALTER TABLE wakes DROP COLUMN id. Older nodes run beside this schema: they name their columns,
-- and delete what is in their partitions.

ALTER TABLE wakes ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
