package protocol

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"time"
)

// Strategy names how delays grow from retry to retry.
type Strategy string

// The strategies of the contract, section 3.
const (
	// StrategyExponential: base × 2^(retry_count-1).
	StrategyExponential Strategy = "exponential"
	// StrategyLinear: base × retry_count.
	StrategyLinear Strategy = "linear"
	// StrategyFixed: base.
	StrategyFixed Strategy = "fixed"
	// StrategySchedule: an explicit list; the last one repeats.
	StrategySchedule Strategy = "schedule"
)

// RetryPolicy spaces a task's attempts. All times are milliseconds. It is
// stored with the task and written into each retry event, so that a delay can
// be recomputed after the configuration changed.
type RetryPolicy struct {
	Strategy     Strategy `json:"strategy"`
	BaseMS       int64    `json:"base_ms"`
	MaxBackoffMS int64    `json:"max_backoff_ms"`
	JitterMaxMS  int64    `json:"jitter_max_ms"`
	ScheduleMS   []int64  `json:"schedule_ms,omitempty"`
}

// DefaultRetryPolicy is the contract's: exponential from 1 s to 30 s with up
// to 300 ms of jitter.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{Strategy: StrategyExponential, BaseMS: 1000, MaxBackoffMS: 30_000, JitterMaxMS: 300}
}

// Bounds of a policy.
const (
	// DefaultMaxRetries is the number of additional attempts of a task that
	// names none: the 4th failure goes to the dead letters.
	DefaultMaxRetries = 3
	// MaxRetriesLimit is the largest max_retries.
	MaxRetriesLimit = 1000
	// maxDelayMS bounds every delay: 365 days.
	maxDelayMS  = 365 * 24 * 3600 * 1000
	maxSchedule = 100
)

// Validate checks the policy; the error is an *Error with code
// TASK_INPUT_INVALID whose field starts with "retry_policy.".
func (p RetryPolicy) Validate() error {
	bad := func(field, format string, args ...any) error {
		return Errorf(CodeInputInvalid, "retry_policy."+field, format, args...)
	}
	switch p.Strategy {
	case StrategyExponential, StrategyLinear, StrategyFixed:
		if len(p.ScheduleMS) > 0 {
			return bad("schedule_ms", "is only for strategy schedule, not %s", p.Strategy)
		}
	case StrategySchedule:
		if len(p.ScheduleMS) == 0 || len(p.ScheduleMS) > maxSchedule {
			return bad("schedule_ms", "needs 1 to %d delays, got %d", maxSchedule, len(p.ScheduleMS))
		}
		for _, ms := range p.ScheduleMS {
			if ms < 1 || ms > maxDelayMS {
				return bad("schedule_ms", "has %d, want 1 to %d ms", ms, int64(maxDelayMS))
			}
		}
	default:
		return bad("strategy", "is %q, want exponential, linear, fixed or schedule", Clip(string(p.Strategy), 32))
	}
	if p.BaseMS < 1 || p.BaseMS > maxDelayMS {
		return bad("base_ms", "is %d, want 1 to %d", p.BaseMS, int64(maxDelayMS))
	}
	if p.MaxBackoffMS < p.BaseMS || p.MaxBackoffMS > maxDelayMS {
		return bad("max_backoff_ms", "is %d, want base_ms (%d) to %d", p.MaxBackoffMS, p.BaseMS, int64(maxDelayMS))
	}
	if p.JitterMaxMS < 0 || p.JitterMaxMS > maxDelayMS {
		return bad("jitter_max_ms", "is %d, want 0 to %d", p.JitterMaxMS, int64(maxDelayMS))
	}
	return nil
}

// Backoff returns the delay before retry number retryCount (1, 2, …) without
// jitter. It saturates at MaxBackoffMS; a schedule's entries are taken as they
// are.
func (p RetryPolicy) Backoff(retryCount int) time.Duration {
	n := int64(max(retryCount, 1))
	var ms int64
	switch p.Strategy {
	case StrategySchedule:
		if len(p.ScheduleMS) == 0 {
			return 0
		}
		return time.Duration(p.ScheduleMS[min(n, int64(len(p.ScheduleMS)))-1]) * time.Millisecond
	case StrategyFixed:
		ms = p.BaseMS
	case StrategyLinear:
		ms = saturatingMul(p.BaseMS, n)
	default:
		if n-1 >= 62 {
			ms = math.MaxInt64
		} else {
			ms = saturatingMul(p.BaseMS, 1<<(n-1))
		}
	}
	return time.Duration(min(ms, p.MaxBackoffMS)) * time.Millisecond
}

func saturatingMul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// Jitter returns the addition to retry number retryCount's backoff: uniform on
// 0 to JitterMaxMS inclusive, and a pure function of its arguments, so that
// every process computes the same one.
func (p RetryPolicy) Jitter(seed []byte, id ID, retryCount int) time.Duration {
	if p.JitterMaxMS <= 0 {
		return 0
	}
	return draw(seed, id, uint64(retryCount), p.JitterMaxMS)
}

// draw is a whole number of milliseconds from 0 to maxMS, by a hash of the rest.
func draw(seed []byte, id ID, n uint64, maxMS int64) time.Duration {
	h := sha256.New()
	h.Write(seed)
	h.Write(id[:])
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	h.Write(b[:])
	x := binary.BigEndian.Uint64(h.Sum(nil))
	hi, _ := bits.Mul64(x, uint64(maxMS)+1)
	return time.Duration(hi) * time.Millisecond
}

// Bounds of Spread.
const spreadStepMS, maxSpreadMS = 1000, 30_000

// Spread is how long a task that was interrupted again waits before it is
// dispatched, so that many that were lost together, more than once, do not all
// come back at the same moment: nothing after the first interruption, then up to
// 1 s, 2 s and so on, at most 30 s. Like Jitter it is a pure function of its
// arguments.
func Spread(seed []byte, id ID, interruptions int) time.Duration {
	if interruptions < 2 {
		return 0
	}
	const interruption = 1 << 63 // other numbers than those of retries
	return draw(seed, id, interruption|uint64(interruptions), min(int64(interruptions-1)*spreadStepMS, maxSpreadMS))
}

// Delay is the whole delay before retry number retryCount: backoff plus jitter.
func (p RetryPolicy) Delay(seed []byte, id ID, retryCount int) time.Duration {
	return p.Backoff(retryCount) + p.Jitter(seed, id, retryCount)
}
