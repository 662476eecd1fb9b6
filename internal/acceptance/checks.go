package acceptance

// checks are all lines, in the order of the documents.
var checks = []check{
	{name: "TQP-1", title: "a task that succeeds: created, claimed, succeeded; acknowledged, nothing pending", run: tqp1},
	{name: "TQP-2", title: "a task that keeps failing: retried to the limit, then in stream:dlq, its log complete", run: tqp2},
	{name: "TQP-3", title: "a worker stops with a task in hand: reclaimed after the visibility timeout, and completed", slow: true, run: tqp3},
	{name: "TQP-4", title: "an effect outside is done once, whatever happens to the execution", slow: true, run: tqp4},
	{name: "TQP-8-approval", title: "approval.requested, approval.approved, approval.rejected on record; nobody approves their own", run: tqp8},

	{name: "RP-001", title: "queued -> running -> succeeded", run: replayed("RP-001")},
	{name: "RP-002", title: "one transient error, then success: retry_count 1", run: replayed("RP-002")},
	{name: "RP-003", title: "three transient errors, then success: retry_count 3", run: replayed("RP-003")},
	{name: "RP-004", title: "the fourth error: dlq_pending -> dlq_recorded -> failed, with a dlq_id", run: replayed("RP-004")},
	{name: "RP-005", title: "a second end is refused with WF_STATE_TRANSITION_INVALID", run: replayed("RP-005")},
	{name: "B2-8.1", title: "the state machine and jobs.status agree", run: b2Status},
	{name: "B2-8.2", title: "retry counts and delays can be reproduced by replay", run: b2Backoff},
	{name: "B2-8.3", title: "the fourth failure goes dlq_pending -> dlq_recorded -> failed and no other way", run: b2Fourth},
	{name: "B2-8.4", title: "RP-001 to RP-005 all pass", run: b2Replays},

	{name: "MEN-transitions", title: "every legal transition happens, no other does, and an illegal one is TASK_INVALID_TRANSITION", run: menTransitions},
	{name: "MEN-attempts", title: "attempt starts at 1, max_attempts = 1 + max_retries, then failed with TASK_RETRY_EXHAUSTED", run: menAttempts},
	{name: "MEN-create", title: "the example of a request is taken, and runs when it says", run: menCreate},
	{name: "MEN-event", title: "the example of a state event is reproduced: names, types, order", run: menEvent},
	{name: "MEN-idempotent-hit", title: "the example of a reply is reproduced: names, types, nulls; TASK_DUPLICATE for other fields", run: menHit},

	{name: "P3C-timeout", title: "injected timeout: retry_scheduled, then succeeded", run: p3cTimeout},
	{name: "P3C-transient", title: "injected transient_error: retry_scheduled, then succeeded", run: p3cTransient},
	{name: "P3C-restart", title: "injected process_restart_interrupt: interrupted, then succeeded", slow: true, run: p3cRestart},
	{name: "P3C-fields", title: "the field contract of task_runs: attempt, idempotency_key, next_retry_at", run: p3cFields},
	{name: "P3C-events", title: "run.status.changed: nine fields, a trace_id of its own, committed with the state", run: p3cEvents},

	{name: "ASTER-replay", title: "replaying the log gives the same retries and the same delays, in 24 scenarios", run: asterReplay},
	{name: "ASTER-dependencies", title: "a step waits for the steps it depends on; the failure of one cancels it", run: asterDependencies},
	{name: "ASTER-no-retry", title: "no retry: p99 < 100 ms", measures: true, run: measured(0)},
	{name: "ASTER-retry-once", title: "one retry: p99 < 100 ms and overhead < 10 %, the configured wait excluded", measures: true, run: measured(1)},
	{name: "ASTER-retry-three", title: "three retries: p99 < 100 ms and overhead < 10 %, the configured wait excluded", measures: true, run: measured(3)},
}
