package protocol

import "slices"

// AlertKind names a rule that raises alerts.
type AlertKind string

// The rules of the contract, section 10.
const (
	// AlertRetryingShare: too large a share of the tasks under way is retrying.
	AlertRetryingShare AlertKind = "retrying_share"
	// AlertDLQGrowth: one tenant gets too many new dead letters.
	AlertDLQGrowth AlertKind = "dlq_growth"
	// AlertInvalidTransitions: outcomes are refused one after the other.
	AlertInvalidTransitions AlertKind = "invalid_transitions"
	// AlertRedisLost: Redis lost what it held, or Postgres went back to before
	// what Redis holds. It fires until all is rebuilt.
	AlertRedisLost AlertKind = "redis_lost"
)

// AlertKinds lists every kind.
func AlertKinds() []AlertKind {
	return []AlertKind{AlertRetryingShare, AlertDLQGrowth, AlertInvalidTransitions, AlertRedisLost}
}

// Severity is P1 for refused transitions, which mean that something writes
// states that it must not write, and for a store that lost its data; P2 for the
// other kinds.
func (k AlertKind) Severity() string {
	if k == AlertInvalidTransitions || k == AlertRedisLost {
		return "P1"
	}
	return "P2"
}

// ActorAlerts is the actor of alert.raised.
const ActorAlerts = "alerts"

// AlertData is the data of alert.raised.
type AlertData struct {
	Kind     AlertKind `json:"kind"`
	Severity string    `json:"severity"`
	// Tenant is empty if the alert is about the whole deployment.
	Tenant string `json:"tenant"`
	// Value is what was measured and Threshold what it is compared with, in the
	// rule's unit: percent, dead letters, refused outcomes, or what was made good
	// for.
	Value     float64 `json:"value"`
	Threshold float64 `json:"threshold"`
	// WindowMS is the time that Value is about; 0: the moment of the event.
	WindowMS int64 `json:"window_ms"`
	// Redis is set in AlertRedisLost only.
	Redis *RedisLossData `json:"redis,omitempty"`
}

// RedisLossData is what alert.raised says about a loss: once when it was found,
// and once, Complete, when all is rebuilt.
type RedisLossData struct {
	// Found is the kind of loss, as in the metric penstock_redis_losses_total.
	Found    string `json:"found"`
	Complete bool   `json:"complete"`
	// Redispatched tasks were lost before a worker claimed them, Interrupted ones
	// while they ran; DeadLetters were put back into stream:dlq.
	Redispatched int64 `json:"redispatched"`
	Interrupted  int64 `json:"interrupted"`
	DeadLetters  int64 `json:"dead_letters"`
}

// JSON returns the data as an event carries it.
func (d AlertData) JSON() string { return string(data(d)) }

// AlertID is the id under which the events of an alert are in the event log:
// one id for each kind and tenant, with seq 1, 2, 3 … for each time that the
// alert was raised.
func AlertID(kind AlertKind, tenant string) ID {
	return hashID(idOfAlert, "alert", string(kind), tenant)
}

// First bytes of ids that events are stored under and that are no task's.
const (
	idOfAlert   = 0xfc
	idOfGarbage = 0xfd
)

// IsTask reports whether events under this id are a task's. Those of alerts and
// of dead letters that are no task are not: they change no state, and no row of
// tasks belongs to them.
func (id ID) IsTask() bool { return !slices.Contains([]byte{idOfAlert, idOfGarbage}, id[0]) }
