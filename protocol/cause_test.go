package protocol

import "testing"

func TestCause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   Code
		reason string
		want   Code
		text   string
	}{
		{CodeRetryExhausted, "TASK_TIMEOUT: too: slow", CodeTimeout, "too: slow"},
		{CodeRetryExhausted, "TASK_EXECUTION_FAILED: ", CodeExecutionFailed, ""},
		{CodeRetryExhausted, "MINE: of an older version", "MINE", "of an older version"},
		{CodeRetryExhausted, "removed on request: by ann", CodeRetryExhausted, "removed on request: by ann"},
		{CodeRetryExhausted, "", CodeRetryExhausted, ""},
		{CodeTimeout, "TASK_EXECUTION_FAILED: x", CodeTimeout, "TASK_EXECUTION_FAILED: x"},
		{"", "", "", ""},
	} {
		if cause, text := Cause(c.code, c.reason); cause != c.want || text != c.text {
			t.Errorf("%s %q: %s %q, want %s %q", c.code, c.reason, cause, text, c.want, c.text)
		}
	}
}

// Whatever a task is given up for, its last failure's code and text can be told.
func TestCauseOfATaskThatIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, code := range []Code{CodeExecutionFailed, CodeTimeout, CodeInputInvalid} {
		for _, retryable := range []bool{true, false} {
			h := newHistory(t, 0)
			o := h.failure(retryable)
			o.Code, o.Error = code, "no: route"
			h.apply(o, Applied)
			cause, text := Cause(h.task.Code, h.task.Reason)
			if ended := h.task.Code == CodeRetryExhausted; cause != code || text != o.Error || ended != retryable {
				t.Errorf("%s, retryable %t: ended with %s, because of %s %q", code, retryable, h.task.Code, cause, text)
			}
		}
	}
	h := newHistory(t, 0)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.do(h.task.TimedOut(h.env, 0, 0))
	if cause, _ := Cause(h.task.Code, h.task.Reason); h.task.Code != CodeRetryExhausted || cause != CodeTimeout {
		t.Errorf("timed out: ended with %s, because of %s", h.task.Code, cause)
	}
}
