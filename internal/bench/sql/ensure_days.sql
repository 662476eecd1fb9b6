-- Makes the partitions of a table for the days from so many to so many before a day.
SELECT penstock_ensure_partition($1::text, $2::date - ago, 1) FROM generate_series($3::int, $4::int) ago;
