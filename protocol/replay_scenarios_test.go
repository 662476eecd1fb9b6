package protocol

import "time"

// scenario is a script and the history that its log must tell. The delays are
// those of the default policy for task testID(1) and the seed of the tests:
// its jitters are 16, 204, 285, 197, 267, 122 ms (SHA-256, computed apart).
type scenario struct {
	name       string
	born       State // queued, unless said
	maxRetries int
	policy     RetryPolicy // the default one, unless said
	steps      []step
	want       []string
	state      State
	code       Code
}

const scenarioSeed = "seed of the tests"

var scenarios = []scenario{
	{name: "success at once", maxRetries: 3, steps: []step{claim, succeed}, want: []string{"1/1 succeeded"}, state: "succeeded"},
	{
		name: "single retry, then success", maxRetries: 3, steps: []step{fail, succeed},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 succeeded"}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "retried twice", maxRetries: 3, steps: []step{claim, fail, dispatch, claim, fail, dispatch, claim, succeed},
		want:  []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 retried EXECUTION_FAILED 2204 policy", "3/3 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "exhausted: the 4th failure of the default", maxRetries: DefaultMaxRetries, steps: []step{fail, fail, fail, fail, bury},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 retried EXECUTION_FAILED 2204 policy",
			"3/3 retried EXECUTION_FAILED 4285 policy", "4/4 dead RETRY_EXHAUSTED",
		}, state: "failed", code: CodeRetryExhausted,
	},
	{name: "max_retries 0", steps: []step{fail, bury}, want: []string{"1/1 dead RETRY_EXHAUSTED"}, state: "failed", code: CodeRetryExhausted},
	{name: "permanent at once", maxRetries: 3, steps: []step{claim, ruin, bury}, want: []string{"1/1 dead INPUT_INVALID"}, state: "failed", code: CodeInputInvalid},
	{
		name: "permanent after a retry", maxRetries: 3, steps: []step{fail, ruin, bury},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 dead INPUT_INVALID"}, state: "failed", code: CodeInputInvalid,
	},
	{name: "given up, dead letter not yet written", steps: []step{ruin}, want: []string{"1/1 dead INPUT_INVALID"}, state: "dlq_pending", code: CodeInputInvalid},
	{
		name: "retry_after overrides the policy", maxRetries: 3, steps: []step{retryAfter(42 * time.Second), fail, succeed},
		want:  []string{"1/1 retried EXECUTION_FAILED 42000 retry_after", "2/2 retried EXECUTION_FAILED 2204 policy", "3/3 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "retry_after of nothing", maxRetries: 1, steps: []step{retryAfter(0), fail, bury},
		want: []string{"1/1 retried EXECUTION_FAILED 0 retry_after", "2/2 dead RETRY_EXHAUSTED"}, state: "failed", code: CodeRetryExhausted,
	},
	{
		name: "snooze spends nothing", steps: []step{snooze(time.Minute), claim, snooze(0), snooze(time.Hour), succeed},
		want: []string{"1/1 snoozed 60000 snooze", "1/2 snoozed 0 snooze", "1/3 snoozed 3600000 snooze", "1/4 succeeded"}, state: "succeeded",
	},
	{
		name: "failures and snoozes mixed", maxRetries: 2, steps: []step{fail, snooze(5 * time.Second), timeOut, snooze(0), succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 snoozed 5000 snooze", "2/3 retried TIMEOUT 2204 policy",
			"3/4 snoozed 0 snooze", "3/5 succeeded",
		}, state: "succeeded", code: CodeTimeout,
	},
	{
		name: "worker lost in between", maxRetries: 2, steps: []step{fail, claim, lose, dispatch, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 lost WORKER_LOST", "2/3 retried EXECUTION_FAILED 2204 policy", "3/4 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "lost too often", maxRetries: 3, steps: []step{claim, lose, dispatch, claim, reclaim, dispatch, reclaim, dispatch, claim, reclaim, bury},
		want:  []string{"1/1 lost WORKER_LOST", "1/2 lost WORKER_LOST", "1/3~ lost WORKER_LOST", "1/4 lost WORKER_LOST"},
		state: "failed", code: CodeWorkerLost,
	},
	{
		name: "lost while it waited for its retry's claim", maxRetries: 1, steps: []step{fail, dispatch, reclaim, dispatch, fail, bury},
		want:  []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2~ lost WORKER_LOST", "2/3 dead RETRY_EXHAUSTED"},
		state: "failed", code: CodeRetryExhausted,
	},
	{
		name: "released at shutdown", maxRetries: 1, steps: []step{claim, release, dispatch, fail, claim, release, dispatch, succeed},
		want:  []string{"1/1 released", "1/2 retried EXECUTION_FAILED 1016 policy", "2/3 released", "2/4 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "handed back before its start", steps: []step{handBack(""), repeat, dispatch, succeed},
		want: []string{"1/1~ released", "1/2 succeeded"}, state: "succeeded",
	},
	{
		name: "unknown type", steps: []step{handBack(CodeUnknownType), dispatch, handBack(CodeUnknownType), dispatch, succeed},
		want: []string{"1/1~ released UNKNOWN_TYPE", "1/2~ released UNKNOWN_TYPE", "1/3 succeeded"}, state: "succeeded",
	},
	{
		name: "entry lost while queued", maxRetries: 1, steps: []step{redispatch, redispatch, fail, succeed},
		want:  []string{"1/1~ redispatched", "1/2~ redispatched", "1/3 retried EXECUTION_FAILED 1016 policy", "2/4 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "entry lost while retrying", maxRetries: 2, steps: []step{fail, dispatch, redispatch, dispatch, redispatch, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2~ redispatched", "2/3~ redispatched", "2/4 retried EXECUTION_FAILED 2204 policy", "3/5 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "timeouts until exhausted", maxRetries: 2, steps: []step{timeOut, timeOut, timeOut, bury},
		want:  []string{"1/1 retried TIMEOUT 1016 policy", "2/2 retried TIMEOUT 2204 policy", "3/3 dead RETRY_EXHAUSTED"},
		state: "failed", code: CodeRetryExhausted,
	},
	{
		name: "worker that does not answer", maxRetries: 1, steps: []step{claim, overdue, late, claim, overdue, bury},
		want: []string{"1/1 retried TIMEOUT 1016 policy", "2/2 dead RETRY_EXHAUSTED"}, state: "failed", code: CodeRetryExhausted,
	},
	{
		name: "linear", maxRetries: 4, policy: RetryPolicy{Strategy: StrategyLinear, BaseMS: 1500, MaxBackoffMS: 5000, JitterMaxMS: 499},
		steps: []step{fail, fail, fail, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1527 policy", "2/2 retried EXECUTION_FAILED 3339 policy", "3/3 retried EXECUTION_FAILED 4973 policy",
			"4/4 retried EXECUTION_FAILED 5327 policy", "5/5 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "fixed", maxRetries: 3, policy: RetryPolicy{Strategy: StrategyFixed, BaseMS: 700, MaxBackoffMS: 700, JitterMaxMS: 99},
		steps: []step{fail, fail, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 705 policy", "2/2 retried EXECUTION_FAILED 767 policy", "3/3 retried EXECUTION_FAILED 794 policy", "4/4 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "schedule", maxRetries: 4, policy: RetryPolicy{Strategy: StrategySchedule, BaseMS: 1, MaxBackoffMS: 1, JitterMaxMS: 300, ScheduleMS: []int64{60_000, 300_000, 900_000}},
		steps: []step{fail, fail, fail, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 60016 policy", "2/2 retried EXECUTION_FAILED 300204 policy", "3/3 retried EXECUTION_FAILED 900285 policy",
			"4/4 retried EXECUTION_FAILED 900197 policy", "5/5 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "saturation", maxRetries: 6, steps: []step{fail, fail, fail, fail, fail, fail, succeed},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 retried EXECUTION_FAILED 2204 policy", "3/3 retried EXECUTION_FAILED 4285 policy",
			"4/4 retried EXECUTION_FAILED 8197 policy", "5/5 retried EXECUTION_FAILED 16267 policy", "6/6 retried EXECUTION_FAILED 30122 policy", "7/7 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "no jitter", maxRetries: 2, policy: RetryPolicy{Strategy: StrategyExponential, BaseMS: 1000, MaxBackoffMS: 30_000},
		steps: []step{fail, fail, succeed},
		want:  []string{"1/1 retried EXECUTION_FAILED 1000 policy", "2/2 retried EXECUTION_FAILED 2000 policy", "3/3 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "configuration changed between attempts", maxRetries: 3,
		steps: []step{
			fail, policy(RetryPolicy{Strategy: StrategyFixed, BaseMS: 50, MaxBackoffMS: 50}), fail,
			policy(RetryPolicy{Strategy: StrategyLinear, BaseMS: 10, MaxBackoffMS: 1000, JitterMaxMS: 99}), fail, succeed,
		},
		want: []string{
			"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 retried EXECUTION_FAILED 50 policy", "3/3 retried EXECUTION_FAILED 124 policy", "4/4 succeeded",
		}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "scheduled for later", born: StatePending, maxRetries: 1, steps: []step{dispatch, fail, dispatch, succeed},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 succeeded"}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "approval asked for while running", maxRetries: 1, steps: []step{fail, claim, askFirst, approve, dispatch, succeed},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 approval_needed", "2/3 succeeded"}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "guarded, then approved", born: StateWaitingApproval, maxRetries: 1, steps: []step{approve, fail, succeed},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 succeeded"}, state: "succeeded", code: CodeExecutionFailed,
	},
	{name: "cancelled while running", steps: []step{claim, cancel}, want: []string{"1/1 cancelled CANCELLED"}, state: "cancelled", code: CodeCancelled},
	{
		name: "cancelled while retrying", maxRetries: 1, steps: []step{fail, cancel, late},
		want: []string{"1/1 retried EXECUTION_FAILED 1016 policy"}, state: "cancelled", code: CodeCancelled,
	},
	{
		name: "repeated and overtaken outcomes", maxRetries: 2, steps: []step{claim, repeat, fail, repeat, late, fail, repeat, succeed, repeat},
		want:  []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 retried EXECUTION_FAILED 2204 policy", "3/3 succeeded"},
		state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "heartbeats and progress in between", maxRetries: 1,
		steps: []step{claim, side(EventHeartbeat, ActorWorker), side(EventProgress, ActorWorker), fail, side(EventAlertRaised, ActorAPI), succeed},
		want:  []string{"1/1 retried EXECUTION_FAILED 1016 policy", "2/2 succeeded"}, state: "succeeded", code: CodeExecutionFailed,
	},
	{
		name: "dead letter requeued, then discarded",
		steps: []step{
			fail, bury, side(EventDLQRequeued, ActorAPI), side(EventDiscardProposed, ActorAPI), side(EventDiscarded, ActorAPI),
		},
		want: []string{"1/1 dead RETRY_EXHAUSTED"}, state: "failed", code: CodeRetryExhausted,
	},
	{name: "still running", maxRetries: 1, steps: []step{fail, claim}, want: []string{"1/1 retried EXECUTION_FAILED 1016 policy"}, state: "running", code: CodeExecutionFailed},
	{name: "still retrying", maxRetries: 1, steps: []step{fail}, want: []string{"1/1 retried EXECUTION_FAILED 1016 policy"}, state: "retrying", code: CodeExecutionFailed},
}
