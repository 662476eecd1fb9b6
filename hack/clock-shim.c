/*
 * Adds TEST_CLOCK_OFFSET seconds to the wall clock of a program that this library
 * is loaded into (LD_PRELOAD); monotonic clocks stay as they are. libfaketime
 * would do, but Redis' allocator asks for the time before it is ready.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long offset(void)
{
	static long long seconds;
	static int known;

	if (!known) {
		const char *s = getenv("TEST_CLOCK_OFFSET");

		seconds = s ? atoll(s) : 0;
		known = 1;
	}
	return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = syscall(SYS_clock_gettime, clock, t);

	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += offset();
	return r;
}

int gettimeofday(struct timeval *t, void *zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
