package protocol

import "regexp"

// causePrefix is what Task.fail puts before the error of a task whose retries are
// used up.
var causePrefix = regexp.MustCompile(`^([A-Za-z0-9_.-]{1,100}): `)

// Cause returns the code of what failed last and its text: code says why a task
// ended, and that its retries are used up (TASK_RETRY_EXHAUSTED) does not tell what
// went wrong; the reason does, as "CODE: text". For every other code they are code and
// reason themselves. The function penstock_cause in Postgres returns the same code.
func Cause(code Code, reason string) (cause Code, text string) {
	if code != CodeRetryExhausted {
		return code, reason
	}
	m := causePrefix.FindStringSubmatch(reason)
	if m == nil {
		return code, reason
	}
	return Code(m[1]), reason[len(m[0]):]
}
