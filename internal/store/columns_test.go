package store_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// What a task is born without, in whatever way: it comes with executions, people
// and time.
var later = strings.Fields(`attempt delivery interruptions event_seq next_retry_at result last_error_code last_error_reason worker_id applied_kind applied_delivery
	rejected_delivery created_at updated_at started_at finished_at heartbeat_at progress unknown_since has_dependants approvals rescheduled_by asked_schedule claimed_at ready_at erased_at`)

// What tasks are born without in one way of several, and why.
var without = map[string]map[string][]string{
	"InsertTasks": {
		"it comes out of no dead letter": {"origin_dlq_id", "also_requested_by"},
	},
	"RequeueDead": {
		"it is another task than the one that failed, under no name and no key of its own": {"name", "idempotency_key", "dependencies_digest"},
		"the time to start was that of the one that failed":                                {"delay_ms", "start_at", "expires_at", "start_within_ms"},
		"what it depended on has ended":                                                    {"open_dependencies"},
	},
	"CloneTasks": {
		"it is another task than the one that was cancelled, under no name and no key of its own": {"name", "idempotency_key", "dependencies_digest"},
		"it starts when what it depends on has ended":                                             {"scheduled_at", "delay_ms", "start_at", "due_at", "expires_at", "start_within_ms"},
		"it failed itself in no way":                                                              {"origin_dlq_id"},
		"no schedule makes tasks that depend on others":                                           {"schedule_id"},
	},
	"FinishTasks": {},
}

// Whoever adds a column to tasks decides in each statement that makes tasks, and in
// the one that moves them, what becomes of it.
func TestEveryStatementKnowsEveryColumn(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "", nil)
	columns := strings.Split(get[string](t, c, "SELECT string_agg(attname, ',' ORDER BY attname) FROM pg_attribute WHERE attrelid = 'tasks'::regclass AND attnum > 0 AND NOT attisdropped"), ",")
	insert := regexp.MustCompile(`(?s)INSERT INTO tasks_(?:live|finished) \((.*?)\)`)
	makes := map[string]bool{}
	for name, sql := range statements(t) {
		m := insert.FindStringSubmatch(sql)
		if m == nil {
			continue
		}
		makes[name] = true
		known := strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
		if name != "FinishTasks" {
			known = append(known, later...)
		}
		for _, which := range without[name] {
			known = append(known, which...)
		}
		slices.Sort(known)
		if !slices.Equal(known, columns) {
			t.Errorf("%s knows the columns\n%q, want each once\n%q", name, known, columns)
		}
	}
	if want := slices.Sorted(maps.Keys(without)); !slices.Equal(slices.Sorted(maps.Keys(makes)), want) {
		t.Errorf("tasks are made by %v, want only by %v", slices.Sorted(maps.Keys(makes)), want)
	}
}
