package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Fault is something that goes wrong; a set of faults is a bit mask.
type Fault uint16

// The faults. Each costs one of Config.Budget.
const (
	// WorkerCrash: a worker dies with what it holds.
	WorkerCrash Fault = 1 << iota
	// OrchestratorCrash: an orchestrator dies with any part of what is under way.
	OrchestratorCrash
	// AddLost: no reply to a pipeline of XADDs to a task stream; each of its
	// entries may have been added or not.
	AddLost
	// OutcomeLost: an outcome is added, the reply lost.
	OutcomeLost
	// FetchLost: an entry is delivered, the reply lost.
	FetchLost
	// WorkerPause: a worker stands still for longer than the visibility timeout.
	WorkerPause
	// LateAdd: an XADD lands after its sender gave up.
	LateAdd
	// FlushAll: FLUSHALL, or Redis restarted empty.
	FlushAll
	// TaskGroupLost: XGROUP DESTROY of the task stream's group.
	TaskGroupLost
	// ResultGroupLost: XGROUP DESTROY of stream:result's group.
	ResultGroupLost
	// StrangerAck: somebody acknowledges a pending entry.
	StrangerAck
	// Backstop: an orchestrator ends an execution that exceeds its timeout.
	Backstop
	// Failover: a replica takes over that lacks the last writes.
	Failover
	// Trimmed: an acknowledged entry is trimmed while its outbox row exists.
	Trimmed
)

var faultNames = []string{
	"worker-crash", "orchestrator-crash", "xadd-lost", "outcome-lost", "fetch-lost", "worker-pause", "late-xadd", "flushall",
	"task-group-lost", "result-group-lost", "stranger-xack", "backstop", "failover", "trimmed",
}

// Sets of faults.
const (
	Crashes     = WorkerCrash | OrchestratorCrash
	LostReplies = AddLost | OutcomeLost | FetchLost
	RedisLosses = FlushAll | TaskGroupLost | ResultGroupLost
	AllFaults   = Trimmed - 1 // Trimmed is for a mutant: nobody else reads what is acknowledged
)

func (f Fault) String() string {
	var names []string
	for i, n := range faultNames {
		if f>>i&1 == 1 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

func (f Fault) index() uint8 { return uint8(bits.TrailingZeros16(uint16(f))) + 1 }

// ParseFaults reads a comma-separated list of names; "none" and "" are empty.
func ParseFaults(s string) (f Fault, err error) {
	if s == "all" {
		return AllFaults, nil
	}
	for _, n := range strings.Split(s, ",") {
		found := n == "" || n == "none"
		for i, name := range faultNames {
			if n == name {
				f, found = f|1<<i, true
			}
		}
		if !found {
			return 0, fmt.Errorf("fault %q is unknown; want some of %s", n, strings.Join(faultNames, ","))
		}
	}
	return f, nil
}

// Mutant is a known-wrong variant of the protocol, to show that the checker
// finds what is wrong with it.
type Mutant string

// The mutants; "" is the protocol as it is.
const (
	// PassWithoutSnapshot: reconcile judges tasks as they are when it compares.
	PassWithoutSnapshot Mutant = "pass-without-snapshot"
	// PendingFirst: reconcile reads pending entries before undelivered ones.
	PendingFirst Mutant = "pending-first"
	// ReclaimAnyState: reclaim compares the delivery only.
	ReclaimAnyState Mutant = "reclaim-any-state"
	// RebuildTwice: a rebuild drops the stream without looking at the group again.
	RebuildTwice Mutant = "rebuild-twice"
	// AddAgain: an entry that reading does not find is added again.
	AddAgain Mutant = "add-again"
	// TombstoneEarly: a tombstone goes when its entry is not in the stream.
	TombstoneEarly Mutant = "tombstone-early"
	// TombstonePendingFirst: it is looked for among the pending entries first.
	TombstonePendingFirst Mutant = "tombstone-pending-first"
	// StartUnchecked: an entry is started after a pause without asking for its owner.
	StartUnchecked Mutant = "start-unchecked"
	// FenceIgnored: outcomes count whatever their delivery.
	FenceIgnored Mutant = "fence-ignored"
	// AckFirst: a worker acknowledges before it reports.
	AckFirst Mutant = "ack-first"
	// GroupAtEnd: stream:result's group is made anew at its end.
	GroupAtEnd Mutant = "result-group-at-end"
	// ClientRetries: the Redis client repeats an XADD that had no reply.
	ClientRetries Mutant = "client-retries"
	// NoReconcile: nobody looks for entries that Redis lost.
	NoReconcile Mutant = "no-reconcile"
	// ReclaimBeforeResults: reclaim does not wait for outcomes under way.
	ReclaimBeforeResults Mutant = "reclaim-before-results"
	// PassBeforeResults: reconcile does not wait for outcomes under way.
	PassBeforeResults Mutant = "pass-before-results"
	// PassIgnoresOutbox: reconcile takes tasks in the outbox for lost.
	PassIgnoresOutbox Mutant = "pass-ignores-outbox"
	// OfferKept: a worker hands back what it still offers.
	OfferKept Mutant = "offer-kept"
	// OfferUnchecked: an offered entry is taken over from whoever holds it.
	OfferUnchecked Mutant = "offer-unchecked"
)

// Config bounds one exploration.
type Config struct {
	// Tasks is 1 or 2, Workers the number of slots, at most 3.
	Tasks, Workers int
	// Retries and Interruptions are the tasks' limits.
	Retries, Interruptions int
	Faults                 Fault
	// Budget is the most faults, Cancels and Releases the most cancellations
	// and hand-backs, of one run; each at most 3.
	Budget, Cancels, Releases int
	// Fine takes apart what is one step otherwise; see docs/model.md.
	Fine   bool
	Mutant Mutant
	// Strict: no fault excuses anything. It shows what a fault can do.
	Strict bool
	// MaxStates cuts the exploration; 0: never.
	MaxStates int
	// Stop ends it at the first violation.
	Stop bool
}

// Mutants lists the mutants.
func Mutants() []Mutant {
	return []Mutant{
		PassWithoutSnapshot, PendingFirst, ReclaimAnyState, RebuildTwice, AddAgain, TombstoneEarly, TombstonePendingFirst, StartUnchecked, FenceIgnored,
		AckFirst, GroupAtEnd, ClientRetries, NoReconcile, ReclaimBeforeResults, PassBeforeResults, PassIgnoresOutbox,
		OfferKept, OfferUnchecked,
	}
}

// Validate reports a setting that is out of its bounds.
func (c *Config) Validate() error {
	for _, s := range []struct {
		name           string
		is, least, max int
	}{
		{"tasks", c.Tasks, 1, 2}, {"workers", c.Workers, 1, maxExecs}, {"retries", c.Retries, 0, 3}, {"interruptions", c.Interruptions, 0, 3},
		{"budget", c.Budget, 0, 3}, {"cancels", c.Cancels, 0, 3}, {"releases", c.Releases, 0, 3},
	} {
		if s.is < s.least || s.is > s.max {
			return fmt.Errorf("%s is %d, want %d to %d", s.name, s.is, s.least, s.max)
		}
	}
	if c.Mutant != "" && !slices.Contains(Mutants(), c.Mutant) {
		return fmt.Errorf("mutant %q is unknown; want one of %q", c.Mutant, Mutants())
	}
	return nil
}

func (c *Config) String() string {
	s := fmt.Sprintf("%d task(s), %d workers, retries %d, interruptions %d, faults %s (%d)",
		c.Tasks, c.Workers, c.Retries, c.Interruptions, c.Faults, c.Budget)
	if c.Cancels > 0 {
		s += fmt.Sprintf(", cancels %d", c.Cancels)
	}
	if c.Releases > 0 {
		s += fmt.Sprintf(", hand-backs %d", c.Releases)
	}
	if c.Fine {
		s += ", fine"
	}
	if c.Strict {
		s += ", strict"
	}
	if c.Mutant != "" {
		s += ", mutant " + string(c.Mutant)
	}
	return s
}

// property is what must hold; a violation names it.
type property string

const (
	secondTerminal   property = "a task moves after its terminal event"
	logDiffers       property = "the log does not fold to the row"
	dispatchedTwice  property = "one (task, delivery) is dispatched twice"
	secondEntry      property = "one (task, delivery) is added to the stream twice"
	outsideTable     property = "a move outside the transition table"
	repeatCounts     property = "a repeat of an outcome is taken for anything else"
	staleAccepted    property = "an outcome of a superseded delivery is accepted"
	currentRefused   property = "an outcome of the current delivery is refused"
	honestRefused    property = "an execution that held its lease throughout is overruled"
	outcomeLost      property = "an outcome is lost"
	overlap          property = "two executions of a task overlap"
	decidedStarts    property = "an execution of work already decided starts"
	cancelledStarts  property = "a cancelled task fetched after its tombstone starts"
	leaseDestroyed   property = "a rebuild destroys a lease granted after the loss"
	notLive          property = "a task is lost: fault-free steps do not finish it"
	deliveryOverflow property = "a bound of the model is exceeded"
)
