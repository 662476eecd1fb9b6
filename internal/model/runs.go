package main

// Wrong is a mutant with bounds within which it must be caught.
type Wrong struct {
	Config
	// Want is the property that breaks first.
	Want property
}

// Wrongs are variants of the protocol that lose or double tasks. Each must be
// found; the same bounds without the mutation must be clean.
func Wrongs() []Wrong {
	mutant := func(m Mutant, want property, f Fault, budget int) Wrong {
		return Wrong{Config{Tasks: 1, Workers: 2, Interruptions: 1, Faults: f, Budget: budget, Cancels: 1, Mutant: m, Stop: true}, want}
	}
	pendingFirst := mutant(TombstonePendingFirst, cancelledStarts, 0, 0)
	offered := func(m Mutant, want property, f Fault) Wrong {
		w := mutant(m, want, f, min(int(f), 1))
		w.Releases = 1
		return w
	}
	pendingFirst.Fine = true // fetched and started are two moments
	return []Wrong{
		pendingFirst,
		mutant(PassWithoutSnapshot, honestRefused, 0, 0),
		mutant(PendingFirst, honestRefused, 0, 0),
		mutant(ReclaimAnyState, secondTerminal, WorkerCrash, 1),
		mutant(RebuildTwice, leaseDestroyed, FlushAll, 1),
		mutant(RebuildTwice, leaseDestroyed, TaskGroupLost, 1),
		mutant(AddAgain, secondEntry, OrchestratorCrash|FlushAll, 2),
		mutant(AddAgain, secondEntry, AddLost|Trimmed, 2),
		mutant(AddAgain, secondEntry, LateAdd, 1),
		mutant(TombstoneEarly, cancelledStarts, 0, 0),
		mutant(StartUnchecked, decidedStarts, WorkerPause, 1),
		mutant(FenceIgnored, staleAccepted, WorkerPause, 1),
		mutant(AckFirst, honestRefused, 0, 0),
		mutant(GroupAtEnd, outcomeLost, ResultGroupLost, 1),
		mutant(ClientRetries, secondEntry, AddLost, 1),
		mutant(NoReconcile, notLive, AddLost, 1),
		mutant(ReclaimBeforeResults, honestRefused, WorkerCrash, 1),
		mutant(PassBeforeResults, honestRefused, 0, 0),
		mutant(PassIgnoresOutbox, honestRefused, 0, 0),
		offered(OfferKept, honestRefused, 0),
		offered(OfferUnchecked, honestRefused, WorkerCrash),
	}
}

// Small are complete explorations of a few seconds together.
func Small() []Config {
	return []Config{
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: Crashes | LostReplies, Budget: 2, Cancels: 1, Fine: true},
		{Tasks: 1, Workers: 2, Faults: AllFaults &^ Failover, Budget: 2, Cancels: 1},
		{Tasks: 1, Workers: 2, Interruptions: 1, Faults: AllFaults, Budget: 1, Cancels: 1, Fine: true},
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: AllFaults, Budget: 1, Cancels: 1, Releases: 1},
		{Tasks: 2, Workers: 2, Faults: Crashes | LostReplies, Budget: 3},
		{Tasks: 2, Workers: 2, Faults: RedisLosses, Budget: 2},
	}
}

// Large are the explorations of make model: a few minutes.
func Large() []Config {
	safe, rest := Crashes|LostReplies, AllFaults&^Failover
	return []Config{
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: safe, Budget: 3, Cancels: 1, Releases: 1, Fine: true},
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: rest, Budget: 2, Cancels: 1, Fine: true}, // with a hand-back: see docs/model.md
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: rest, Budget: 1, Cancels: 1, Releases: 1, Fine: true},
		{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: AllFaults, Budget: 2, Cancels: 1, Releases: 1},
		{Tasks: 2, Workers: 2, Retries: 1, Interruptions: 1, Faults: safe, Budget: 3},
		{Tasks: 2, Workers: 2, Faults: safe, Budget: 3, Cancels: 1, Releases: 1},
		{Tasks: 2, Workers: 2, Faults: safe, Budget: 2, Fine: true},
		{Tasks: 2, Workers: 2, Retries: 1, Interruptions: 1, Faults: RedisLosses, Budget: 2},
		{Tasks: 2, Workers: 2, Faults: safe | RedisLosses, Budget: 3},
		{Tasks: 2, Workers: 2, Faults: rest, Budget: 2, Cancels: 1},
		{Tasks: 2, Workers: 2, Interruptions: 1, Faults: AllFaults, Budget: 1, Cancels: 1},
	}
}
