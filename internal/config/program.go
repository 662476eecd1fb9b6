package config

import (
	"slices"
	"sync"
)

// Names of the programs, as messages show them.
const (
	orchestratorProgram = "orchestrator"
	workerProgram       = "worker"
	clientProgram       = "client"
)

// programKeys is the settings of one program.
type programKeys struct {
	program string
	keys    []Key
}

// programs returns the settings of all programs.
var programs = sync.OnceValue(func() []programKeys {
	return []programKeys{
		{orchestratorProgram, Keys(DefaultOrchestrator())},
		{workerProgram, Keys(DefaultWorker())},
		{clientProgram, Keys(DefaultClient())},
	}
})

// ownersOf returns the programs that have the key.
func ownersOf(key string) []string {
	var owners []string
	for _, p := range programs() {
		if slices.ContainsFunc(p.keys, func(k Key) bool { return k.Name == key }) {
			owners = append(owners, p.program)
		}
	}
	return owners
}
