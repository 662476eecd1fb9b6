-- Makes the partition of a table that has a day, if there is none.
SELECT penstock_ensure_partition($1::text, $2::date, 1);
