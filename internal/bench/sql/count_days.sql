-- How many partitions with dates each of the two tables has, and the first day of all.
SELECT count(*)::int, min(first_day) FROM dated_partitions WHERE parent = 'tasks_finished';
