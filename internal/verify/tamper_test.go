package verify_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// tampering breaks something about a named task. Where sql is given it runs
// statements, separated by semicolons, in which $1 is the task's id, $d its
// dead letter's, and $o another task's ("other").
type tampering struct {
	task  string
	sql   string
	other string
	redis func(t *testing.T, w *world)
	want  string // "check task, …", sorted, each once
}

func (x tampering) do(t *testing.T, w *world) {
	t.Helper()
	quote := func(id protocol.ID) string { return "'" + id.String() + "'::uuid" }
	id := w.ids[x.task]
	for sql := range strings.SplitSeq(x.sql, ";") {
		if sql = strings.TrimSpace(sql); sql == "" {
			continue
		}
		sql = strings.NewReplacer("$1", quote(id), "$d", quote(protocol.DLQID(id)), "$o", quote(w.ids[x.other])).Replace(sql)
		tag, err := w.DB.Exec(t.Context(), sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if tag.RowsAffected() == 0 && !tag.Select() && !strings.HasPrefix(sql, "ALTER") {
			t.Fatalf("%s: no row", sql)
		}
	}
	if x.redis != nil {
		x.redis(t, w)
	}
}

const event = "UPDATE event_log SET %s WHERE task_id = $1 AND type = '%s'"

// addEvent copies the task's last event to the next number, changed.
const addEvent = `INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, idempotency_key, actor, trace_id, occurred_at)
	SELECT task_id, seq + 1, '%s', status, '%s', attempt, delivery, idempotency_key, actor, trace_id, now()
	FROM event_log WHERE task_id = $1 ORDER BY seq DESC LIMIT 1;
	UPDATE tasks SET event_seq = event_seq + 1 WHERE id = $1`

// addEffect gives the task an effect: scope, key, name, delivery.
const addEffect = `INSERT INTO effects (scope, key, name, state, token, task_id, delivery, worker_id, users, runs, reserved_at, updated_at)
	SELECT '%s', '%s', '%s', 'reserved', gen_random_uuid(), id, %s, 'w', ARRAY[id], 1, now(), now() FROM tasks WHERE id = $1`

var tamperings = map[string]tampering{
	// The log.
	"event deleted":           {task: "retried", sql: "DELETE FROM event_log WHERE task_id = $1 AND seq = 2", want: "seq retried"},
	"first event deleted":     {task: "queued", sql: "DELETE FROM event_log WHERE task_id = $1 AND seq = 1", want: "fold queued, seq queued"},
	"last event deleted":      {task: "done", sql: "DELETE FROM event_log WHERE task_id = $1 AND type = 'task.succeeded'", want: "row done, seq done, terminal done"},
	"all events deleted":      {task: "done", sql: "DELETE FROM event_log WHERE task_id = $1", want: "fold done, seq done, terminal done"},
	"event renumbered":        {task: "done", sql: fmt.Sprintf(event, "seq = 99", "task.succeeded"), want: "seq done"},
	"second terminal event":   {task: "done", sql: fmt.Sprintf(addEvent, "task.succeeded", "succeeded"), want: "fold done"},
	"another end":             {task: "done", sql: fmt.Sprintf(addEvent, "task.failed", "failed"), want: "fold done, terminal done"},
	"illegal move":            {task: "queued", sql: fmt.Sprintf(addEvent, "task.succeeded", "succeeded"), want: "fold queued, terminal queued"},
	"wrong previous status":   {task: "done", sql: fmt.Sprintf(event, "previous_status = 'pending'", "task.claimed"), want: "fold done"},
	"wrong delivery":          {task: "retried", sql: fmt.Sprintf(event, "delivery = delivery + 1", "task.retry_scheduled"), want: "fold retried"},
	"attempt goes back":       {task: "retried", sql: fmt.Sprintf(event, "attempt = 1", "task.succeeded"), want: "fold retried, runs retried"},
	"key of an event":         {task: "held", sql: fmt.Sprintf(event, "idempotency_key = 'x'", "task.created"), want: "event held"},
	"details missing":         {task: "tried", sql: fmt.Sprintf(event, "data = NULL", "task.reclaimed"), want: "event tried"},
	"interruption forgotten":  {task: "tried", sql: fmt.Sprintf(event, "error_code = NULL", "task.interrupted"), want: "row tried"},
	"failed without recorded": {task: "dead", sql: fmt.Sprintf(event, "status = 'failed', type = 'task.failed'", "task.dlq' AND status = 'dlq_recorded"), want: "fold dead, terminal dead"},
	"event of nobody": {task: "done", sql: `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		VALUES ('01900000-0000-7000-8000-00000000dead', 1, 'task.created', 'queued', 1, 1, 'api', 'x', now())`, want: "orphan id 01900000-0000-7000-8000-00000000dead"},
	"gap between alerts": {task: "done", sql: `INSERT INTO alerts (kind, tenant, id, seq, firing, value, threshold) VALUES ('dlq_growth', 'x', 'fc000000-0000-8000-8000-000000000001', 2, true, 1, 1);
		INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		VALUES ('fc000000-0000-8000-8000-000000000001', 2, 'alert.raised', '', 1, 0, 'alerts', 'x', now())`, want: "seq id fc000000-0000-8000-8000-000000000001"},
	"alert without events": {task: "done", sql: "INSERT INTO alerts (kind, tenant, id, seq, firing, value, threshold) VALUES ('dlq_growth', 'y', gen_random_uuid(), 2, true, 1, 1)",
		want: "seq alert dlq_growth of tenant \"y\""},
	"events of no alert": {task: "done", sql: `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		VALUES ('fc000000-0000-8000-8000-000000000002', 1, 'alert.raised', 'x', 1, 0, 'alerts', 'x', now())`,
		want: "event id fc000000-0000-8000-8000-000000000002, orphan id fc000000-0000-8000-8000-000000000002"},

	// The row.
	"state":            {task: "done", sql: "UPDATE tasks SET state = 'running', finished_at = NULL WHERE id = $1", want: "redis done, row done, terminal done"},
	"attempt":          {task: "queued", sql: "UPDATE tasks SET attempt = 2 WHERE id = $1", want: "row queued, runs queued"},
	"delivery":         {task: "queued", sql: "UPDATE tasks SET delivery = 2 WHERE id = $1", want: "redis queued, row queued"},
	"interruptions":    {task: "tried", sql: "UPDATE tasks SET interruptions = 0 WHERE id = $1", want: "row tried"},
	"event_seq":        {task: "done", sql: "UPDATE tasks SET event_seq = 7 WHERE id = $1", want: "seq done"},
	"next_retry_at":    {task: "retrying", sql: "UPDATE tasks SET next_retry_at = next_retry_at - interval '1 minute' WHERE id = $1", want: "row retrying"},
	"finished_at":      {task: "done", sql: "UPDATE tasks SET finished_at = now() WHERE id = $1", want: "row done"},
	"claimed_at":       {task: "running", sql: "UPDATE tasks SET claimed_at = claimed_at + interval '1 second' WHERE id = $1", want: "row running"},
	"run time logged":  {task: "done", sql: fmt.Sprintf(event, `data = jsonb_set(data::jsonb, '{finished_at}', '"2039-01-01T00:00:00Z"')`, "task.succeeded"), want: "event done, row done"},
	"started_at":       {task: "running", sql: "UPDATE tasks SET started_at = NULL WHERE id = $1", want: "row running"},
	"worker_id":        {task: "running", sql: "UPDATE tasks SET worker_id = 'x' WHERE id = $1", want: "row running"},
	"trace_id":         {task: "running", sql: "UPDATE tasks SET trace_id = 'x' WHERE id = $1", want: "row running"},
	"applied outcome":  {task: "done", sql: "UPDATE tasks SET applied_delivery = 0, applied_kind = NULL WHERE id = $1", want: "row done"},
	"refused outcome":  {task: "tried", sql: "UPDATE tasks SET rejected_delivery = 9 WHERE id = $1", want: "row tried"},
	"result":           {task: "dead", sql: "UPDATE tasks SET result = '1' WHERE id = $1", want: "row dead"},
	"never dispatched": {task: "scheduled", sql: "UPDATE tasks SET due_at = NULL WHERE id = $1", want: "due scheduled"},
	"retry too early":  {task: "retrying", sql: "UPDATE tasks SET due_at = now() WHERE id = $1", want: "due retrying"},
	"due where it can't be": {task: "running", sql: "ALTER TABLE tasks_live DROP CONSTRAINT tasks_due_at; UPDATE tasks SET due_at = now() WHERE id = $1",
		want: "due running"},
	"next_retry_at in another state": {task: "queued", sql: "ALTER TABLE tasks_live DROP CONSTRAINT tasks_next_retry_at; UPDATE tasks SET next_retry_at = now() WHERE id = $1",
		want: "row queued"},

	// Runs.
	"attempt left out":           {task: "retried", sql: "UPDATE event_log SET attempt = 3 WHERE task_id = $1 AND seq > 3", want: "fold retried, runs retried"},
	"run begun twice":            {task: "retried", sql: "UPDATE event_log SET attempt = 1 WHERE task_id = $1 AND seq = 4", want: "fold retried, runs retried"},
	"timeout":                    {task: "queued", sql: "UPDATE tasks SET timeout_ms = 0 WHERE id = $1", want: "row queued"},
	"start_within":               {task: "queued", sql: "UPDATE tasks SET start_within_ms = 0 WHERE id = $1", want: "row queued"},
	"heartbeat timeout":          {task: "queued", sql: "UPDATE tasks SET heartbeat_timeout_ms = -1 WHERE id = $1", want: "row queued"},
	"policy of dependencies":     {task: "queued", sql: "UPDATE tasks SET on_dependency_failure = 'wait' WHERE id = $1", want: "row queued"},
	"effects of its own without": {task: "queued", sql: "UPDATE tasks SET effect_own = true WHERE id = $1", want: "row queued"},
	"no first run":               {task: "done", sql: "UPDATE event_log SET attempt = 2 WHERE task_id = $1; UPDATE tasks SET attempt = 2 WHERE id = $1", want: "fold done, runs done"},
	"run that nobody began":      {task: "done", sql: "UPDATE tasks SET attempt = 3 WHERE id = $1", want: "row done, runs done"},
	"attempt 0":                  {task: "queued", sql: "ALTER TABLE tasks DROP CONSTRAINT tasks_attempt; UPDATE tasks SET attempt = 0 WHERE id = $1", want: "row queued, runs queued"},
	"very many attempts":         {task: "queued", sql: "UPDATE tasks SET max_retries = 2000000000, attempt = 2000000000 WHERE id = $1", want: "row queued, runs queued"},
	"id of two tasks": {task: "done", sql: "ALTER TABLE tasks_finished DROP CONSTRAINT IF EXISTS tasks_finished_pkey; INSERT INTO tasks SELECT * FROM tasks WHERE id = $1",
		want: "runs done"},
	"id of a task that lives and of one that has ended": {task: "done", sql: `INSERT INTO tasks SELECT (jsonb_populate_record(t, '{"state": "running", "finished_at": null}')).* FROM tasks t WHERE id = $1`,
		want: "runs done"},
	"id of two tasks that ran twice": {task: "retried", sql: "ALTER TABLE tasks_finished DROP CONSTRAINT IF EXISTS tasks_finished_pkey; INSERT INTO tasks SELECT * FROM tasks WHERE id = $1",
		want: "runs retried"},

	// Retries.
	"delay":                {task: "retried", sql: fmt.Sprintf(event, "backoff_delay_ms = backoff_delay_ms + 1, next_retry_at = next_retry_at + interval '1 millisecond'", "task.retry_scheduled"), want: "backoff retried"},
	"next_retry_at logged": {task: "retrying", sql: fmt.Sprintf(event, "next_retry_at = next_retry_at + interval '1 second'", "task.retry_scheduled"), want: "backoff retrying, row retrying"},
	"jitter":               {task: "retried", sql: fmt.Sprintf(event, "data = jsonb_set(data::jsonb, '{jitter_ms}', '9')", "task.retry_scheduled"), want: "backoff retried"},
	"policy":               {task: "retried", sql: fmt.Sprintf(event, "data = jsonb_set(data::jsonb, '{policy,base_ms}', '11')", "task.retry_scheduled"), want: "backoff retried"},
	"policy missing":       {task: "retried", sql: fmt.Sprintf(event, "data = data::jsonb - 'policy'", "task.retry_scheduled"), want: "backoff retried"},
	"details of the delay": {task: "retried", sql: fmt.Sprintf(event, "data = NULL", "task.retry_scheduled"), want: "backoff retried"},
	"source of the delay":  {task: "retried", sql: fmt.Sprintf(event, "data = jsonb_set(data::jsonb, '{delay_source}', '\"retry_after\"')", "task.retry_scheduled"), want: "backoff retried"},
	"seed":                 {task: "", sql: "UPDATE deployment SET seed = 'x'", want: "backoff retrying"},
	// The delay fits the policy in the event, but that is not the task's.
	"another policy": {task: "retrying", sql: fmt.Sprintf(event, "data = jsonb_set(jsonb_set(data::jsonb, '{policy,base_ms}', '7200000'), '{policy,max_backoff_ms}', '7200000'), "+
		"backoff_delay_ms = backoff_delay_ms + 3600000, next_retry_at = next_retry_at + interval '1 hour'", "task.retry_scheduled") +
		"; UPDATE tasks SET next_retry_at = next_retry_at + interval '1 hour', due_at = due_at + interval '1 hour' WHERE id = $1", want: "backoff retrying"},

	// Effects.
	"effect of another key":       {task: "done", sql: fmt.Sprintf(addEffect, "default", "k:x", "a", "1"), want: `effect effect "a" of key "k:x" in scope "default"`},
	"effect of an id, not a key":  {task: "held", sql: fmt.Sprintf(addEffect, "default", "t:k-held", "b", "1"), want: `effect effect "b" of key "t:k-held" in scope "default"`},
	"effect of nobody's delivery": {task: "retried", sql: fmt.Sprintf(addEffect, "default", "t:order-17", "c", "9"), want: `effect effect "c" of key "t:order-17" in scope "default"`},

	// Idempotency keys.
	"key lost":              {task: "held", sql: "DELETE FROM idempotency_keys WHERE task_id = $1", want: "idempotency held"},
	"key of another task":   {task: "held", other: "done", sql: "UPDATE idempotency_keys SET task_id = $o WHERE task_id = $1", want: "idempotency held, idempotency idempotency key \"k-held\" of scope \"default\""},
	"key of a missing task": {task: "done", sql: "UPDATE idempotency_keys SET task_id = gen_random_uuid() WHERE task_id = $1", want: "idempotency idempotency key \"k-done\" of scope \"default\""},
}

// deadTamperings break what belongs to dead letters.
var deadTamperings = map[string]tampering{
	"dead letter lost":      {task: "dead", sql: "DELETE FROM dlq_items WHERE task_id = $1", want: "dead_letter dead"},
	"dead letter of a live": {task: "queued", sql: "INSERT INTO dlq_items (dlq_id, task_id, tenant, error_code, error, retry_count, failed_at) VALUES ($d, $1, 'default', 'x', 'x', 0, now())", want: "dead_letter queued"},
	"of a missing task":     {task: "dead", sql: "UPDATE dlq_items SET task_id = gen_random_uuid() WHERE task_id = $1", want: "dead_letter dead, dead_letter dead letter dlq-dead"},
	"not recorded":          {task: "dead", sql: "UPDATE dlq_items SET recorded_at = NULL WHERE dlq_id = $d", want: "dead_letter dead"},
	"another code":          {task: "dead", sql: "UPDATE dlq_items SET error_code = 'TASK_TIMEOUT' WHERE dlq_id = $d", want: "dead_letter dead"},
	"another retry count":   {task: "dead", sql: "UPDATE dlq_items SET retry_count = 3 WHERE dlq_id = $d", want: "dead_letter dead"},
	"another reason":        {task: "dead", sql: "UPDATE tasks SET last_error_reason = 'x' WHERE id = $1", want: "dead_letter dead, row dead"},
	"errors of attempts":    {task: "exhausted", sql: "UPDATE dlq_items SET errors = '[]' WHERE dlq_id = $d", want: "dead_letter exhausted"},
	"step in an event":      {task: "dead", sql: fmt.Sprintf(event, "data = jsonb_set(data::jsonb, '{step}', '\"x\"')", "task.dlq' AND status = 'dlq_pending"), want: "dead_letter dead"},
	"edit lost":             {task: "edited", sql: "DELETE FROM dlq_edits WHERE dlq_id = $d", want: "dead_letter edited"},
	"entry unknown":         {task: "dead", sql: "UPDATE dlq_items SET entry_id = NULL WHERE dlq_id = $d", want: "stream_dlq dead"},
	"entry is no id":        {task: "dead", sql: "UPDATE dlq_items SET entry_id = 'x' WHERE dlq_id = $d", want: "stream_dlq dead"},
	"entry of another": {task: "dead", other: "exhausted", sql: "UPDATE dlq_items d SET entry_id = x.entry_id FROM dlq_items x WHERE d.dlq_id = $d AND x.task_id = $o",
		want: "stream_dlq dead"},
	"entry deleted": {task: "dead", want: "stream_dlq dead", redis: func(t *testing.T, w *world) {
		var id string
		if err := w.DB.QueryRow(t.Context(), "SELECT entry_id FROM dlq_items WHERE dlq_id = $1", dlqOf(w, "dead")).Scan(&id); err != nil {
			t.Fatal(err)
		}
		gone(t, w.Raw.XDel(t.Context(), protocol.StreamDLQ, id))
	}},
	"events of an entry": {task: "garbage", sql: "UPDATE dlq_items SET event_seq = 3 WHERE task_id IS NULL", want: "seq dead letter garbage"},
	"entry of garbage":   {task: "garbage", sql: "UPDATE dlq_items SET entry_id = '1-1' WHERE task_id IS NULL", want: "stream_dlq dead letter garbage"},

	"link lost":       {task: "requeued", other: "again", sql: "DELETE FROM dlq_requeues WHERE dlq_id = $d", want: "requeue again, requeue requeued"},
	"count":           {task: "requeued", other: "again", sql: "UPDATE dlq_items SET requeues = 2 WHERE dlq_id = $d", want: "requeue requeued"},
	"number":          {task: "requeued", other: "again", sql: "UPDATE dlq_requeues SET n = 2 WHERE dlq_id = $d", want: "requeue requeued"},
	"origin":          {task: "requeued", other: "again", sql: "UPDATE tasks SET origin_dlq_id = NULL WHERE id = $o", want: "requeue again, requeue requeued"},
	"another origin":  {task: "done", sql: "UPDATE tasks SET origin_dlq_id = gen_random_uuid() WHERE id = $1", want: "requeue done"},
	"event of":        {task: "requeued", other: "again", sql: fmt.Sprintf(event, "data = jsonb_set(data::jsonb, '{task_id}', '\"x\"')", "dlq.requeued"), want: "requeue requeued"},
	"status":          {task: "requeued", other: "again", sql: "UPDATE dlq_items SET status = 'open', settled_at = NULL WHERE dlq_id = $d", want: "requeue requeued"},
	"not discarded":   {task: "discarded", sql: "UPDATE dlq_items SET status = 'open', settled_at = NULL WHERE dlq_id = $d", want: "discard discarded"},
	"event of it":     {task: "discarded", sql: "UPDATE event_log SET type = 'dlq.discard_proposed' WHERE task_id = $1 AND type = 'dlq.discarded'", want: "discard discarded"},
	"by one person":   {task: "discarded", sql: "ALTER TABLE dlq_items DROP CONSTRAINT dlq_items_two_people; UPDATE dlq_items SET discard_confirmed_by = discard_proposed_by WHERE dlq_id = $d", want: "discard discarded"},
	"of no batch":     {task: "discarded", other: "discard-batch", sql: "UPDATE dlq_items SET discard_batch_id = gen_random_uuid() WHERE dlq_id = $d", want: "batch batch discard-batch"},
	"batch done":      {task: "batch", sql: "UPDATE dlq_batches SET done = 0 WHERE id = $1", want: "batch batch batch"},
	"batch digest":    {task: "batch", sql: "UPDATE dlq_batches SET digest = 'x' WHERE id = $1", want: "batch batch batch"},
	"batch items":     {task: "batch", sql: "UPDATE dlq_batch_items SET status = 'skipped' WHERE batch_id = $1", want: "batch batch batch"},
	"batch task":      {task: "batch", sql: "UPDATE dlq_batch_items SET task_id = gen_random_uuid() WHERE batch_id = $1", want: "batch batch batch"},
	"batch item lost": {task: "batch", sql: "DELETE FROM dlq_batch_items WHERE batch_id = $1", want: "batch batch batch"},
}

// redisTamperings take live tasks out of the place where they are.
var redisTamperings = map[string]tampering{
	"entry acknowledged by a stranger":  {task: "held", redis: func(t *testing.T, w *world) { w.Ack(t, w.held["held"]) }, want: "redis held"},
	"entry of a running one":            {task: "running", redis: func(t *testing.T, w *world) { w.Ack(t, w.held["running"]) }, want: "redis running"},
	"entry of one dispatched once more": {task: "retrying again", redis: func(t *testing.T, w *world) { w.Ack(t, w.held["retrying again"]) }, want: "redis retrying again"},
	"pending entry deleted": {task: "held", redis: func(t *testing.T, w *world) {
		gone(t, w.Raw.XDel(t.Context(), protocol.StreamTask, w.held["held"].MessageID))
	}, want: "redis held"},
	"undelivered entry deleted":          {task: "queued", redis: func(t *testing.T, w *world) { drop(t, w, protocol.StreamTask, "queued") }, want: "redis queued"},
	"stream of a queue deleted":          {task: "queued elsewhere", redis: func(t *testing.T, w *world) { gone(t, w.Raw.Del(t.Context(), protocol.TaskStream("q2"))) }, want: "redis queued elsewhere"},
	"outcome deleted":                    {task: "reported", redis: func(t *testing.T, w *world) { drop(t, w, protocol.StreamResult, "reported") }, want: "redis reported"},
	"outcome acknowledged by a stranger": {task: "taken", redis: ackResults, want: "redis taken"},
	"outbox lost":                        {task: "in the outbox", sql: "DELETE FROM dispatch_outbox", want: "redis in the outbox"},
	"claim instead of an outcome": {task: "held", want: "redis held", redis: func(t *testing.T, w *world) {
		w.Ack(t, w.held["held"])
		w.Report(t, w.held["held"].Outcome(protocol.OutcomeClaimed))
	}},
	"group destroyed": {task: "", want: "redis held, redis queued, redis retrying again, redis running", redis: func(t *testing.T, w *world) {
		gone(t, w.Raw.XGroupDestroy(t.Context(), protocol.StreamTask, protocol.GroupWorkers))
	}},
	// The group will be made anew at the stream's beginning: nothing is lost.
	"group of results destroyed": {task: "", redis: func(t *testing.T, w *world) {
		gone(t, w.Raw.XGroupDestroy(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators))
	}},
}

func dlqOf(w *world, name string) []byte {
	id := protocol.DLQID(w.ids[name])
	return id[:]
}

// gone fails the test unless the command removed something.
func gone(t *testing.T, cmd *redis.IntCmd) {
	t.Helper()
	if n, err := cmd.Result(); err != nil || n == 0 {
		t.Fatalf("%s: %d, error %v", cmd, n, err)
	}
}

// drop deletes the entry of a named task that nobody was given.
func drop(t *testing.T, w *world, stream, name string) {
	t.Helper()
	ms, err := w.Raw.XRange(t.Context(), stream, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(ms) {
		if m.Values[protocol.FieldID] == w.ids[name].String() {
			gone(t, w.Raw.XDel(t.Context(), stream, m.ID))
			return
		}
	}
	t.Fatalf("%s has no entry of %s", stream, name)
}

// ackResults acknowledges the outcomes that somebody has fetched.
func ackResults(t *testing.T, w *world) {
	t.Helper()
	ps, _, err := w.Client.PendingAfter(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, "", 0)
	if err != nil || len(ps) != 1 {
		t.Fatalf("%v, error %v", ps, err)
	}
	gone(t, w.Raw.XAck(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, ps[0].ID))
}

// Each tampering is found under the right name, and nothing else. Those that
// are about different tasks share a world, which takes a while to make.
func TestTampering(t *testing.T) {
	t.Parallel()
	for part, table := range map[string]map[string]tampering{"tasks": tamperings, "dead letters": deadTamperings, "redis": redisTamperings} {
		for i, group := range pack(table) {
			t.Run(fmt.Sprintf("%s %d", part, i), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var want []string
				for _, name := range group {
					x := table[name]
					x.do(t, w)
					want = append(want, x.want)
				}
				_, found := run(t, w.Stores, verify.Options{})
				if got, want := brief(found, w.names()), join(want); got != want {
					t.Errorf("after %q\ngot  %s\nwant %s", group, got, want)
					for _, d := range found {
						t.Logf("%s  %s", d.Check, d)
					}
				}
			})
		}
	}
}

// pack puts tamperings that have no task in common into groups. One that is
// about no task in particular is alone.
func pack(table map[string]tampering) (groups [][]string) {
	var used []map[string]bool
next:
	for _, name := range slices.Sorted(maps.Keys(table)) {
		x := table[name]
		if x.task != "" {
			for i := range groups {
				if !used[i][""] && !used[i][x.task] && !used[i][x.other] {
					groups[i] = append(groups[i], name)
					used[i][x.task] = true
					used[i][x.other] = x.other != ""
					continue next
				}
			}
		}
		groups = append(groups, []string{name})
		used = append(used, map[string]bool{x.task: true})
		if x.other != "" {
			used[len(used)-1][x.other] = true
		}
	}
	return groups
}

// join makes one text, as brief does, of several.
func join(want []string) string {
	var all []string
	for _, w := range want {
		if w != "" {
			all = append(all, strings.Split(w, ", ")...)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}
