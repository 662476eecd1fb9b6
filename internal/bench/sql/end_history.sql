DROP FUNCTION bench_day(text, date, int, json), bench_ids(timestamptz, int);
