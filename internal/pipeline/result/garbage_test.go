package result_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Entries that are no outcomes are acknowledged and kept, and the consumer goes
// on with the ones behind them.
func TestGarbageIsKept(t *testing.T) {
	t.Parallel()
	r := rig(t)
	h := fetched(t, r, 1)[0]
	stranger := succeeded(h) // about a task that does not exist
	stranger.ID[15] ^= 1
	good := stranger.Values()
	with := func(field string, value any) []any {
		out := append([]any{}, good...)
		for i := 0; i < len(out); i += 2 {
			if out[i] == field {
				out[i+1] = value
			}
		}
		return out
	}
	garbage := map[string][]any{
		"no fields of ours": {"hello", "world"},
		"missing id":        with(protocol.FieldID, ""),
		"not a UUID":        with(protocol.FieldID, "42"),
		"wrong version":     with(protocol.FieldVersion, "2"),
		"no such kind":      with(protocol.FieldKind, "exploded"),
		"negative delivery": with(protocol.FieldDelivery, -1),
		"binary":            {"\x00\xff\xfe", "\x80\x81\x00", "v", "\x00"},
		"NUL":               with(protocol.FieldWorkerID, "a\x00b"),
		"bad time":          with(protocol.FieldStartedAt, "yesterday"),
		"huge":              {"v", "1", "junk", strings.Repeat("x", 9<<20)},
		"many fields":       manyFields(20_000),
	}
	var values [][]any
	for _, v := range garbage {
		values = append(values, v)
	}
	for _, a := range r.Client.Append(t.Context(), protocol.StreamResult, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	r.Report(t, succeeded(h))
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	r.WaitState(t, protocol.StateSucceeded, h.ID)
	applied(t, r)
	r.Ack(t, h)
	testkit.VerifyLog(t, r.Stores)
	if n := r.Count(t, `SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND stream = 'stream:result' AND error_code = 'TASK_INPUT_INVALID'
		AND message_id IS NOT NULL AND raw IS NOT NULL AND recorded_at IS NOT NULL AND error <> ''`); n != len(garbage) {
		t.Errorf("%d dead letters without a task, want %d", n, len(garbage))
	}
	kept := map[any]bool{} // an entry may be there twice if another consumer took over meanwhile
	for _, m := range r.Raw.XRange(t.Context(), protocol.StreamDLQ, "-", "+").Val() {
		kept[m.Values[protocol.FieldDLQID]] = true
	}
	if len(kept) != len(garbage) {
		t.Errorf("%d dead letters in stream:dlq, want %d", len(kept), len(garbage))
	}
}

func manyFields(n int) []any {
	out := make([]any, 0, 2*n)
	for i := range n {
		out = append(out, fmt.Sprint("field", i), strings.Repeat("v", 50))
	}
	return out
}

// An outcome that can't be read, but says which task it is about, ends that
// task: its worker has acknowledged the entry, and running it again would end
// the same way.
func TestUnreadableOutcomeEndsItsTask(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 2)
	bad := hs[0].Outcome("exploded")
	old := hs[1].Outcome("exploded")
	old.Delivery = 9 // not the current one: fenced like any other
	r.Report(t, bad, old, succeeded(hs[1]))
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	r.WaitState(t, protocol.StateFailed, hs[0].ID)
	r.WaitState(t, protocol.StateSucceeded, hs[1].ID)
	applied(t, r)
	r.Ack(t, hs...)
	if row := r.Row(t, hs[0].ID); row.Code != string(protocol.CodeInputInvalid) || !strings.Contains(row.Reason, "exploded") {
		t.Errorf("%+v", row)
	}
	testkit.VerifyLog(t, r.Stores)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND stream = 'stream:result'"); n != 2 {
		t.Errorf("%d entries kept, want 2", n)
	}
}

// A worker may give a failure three codes. Another one would mean what only the
// orchestrator says with it.
func TestCodesOfWorkers(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 2)
	for i, code := range []protocol.Code{protocol.CodeWorkerLost, protocol.CodeTimeout} {
		o := hs[i].Outcome(protocol.OutcomeFailed)
		o.Code, o.Error = code, "the cause"
		r.Report(t, o)
	}
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	r.Ack(t, hs...)
	r.WaitState(t, protocol.StateFailed, hs[0].ID, hs[1].ID)
	if row := r.Row(t, hs[0].ID); row.Code != string(protocol.CodeExecutionFailed) || row.Reason != "TASK_WORKER_LOST: the cause" {
		t.Errorf("another code: %+v", row)
	}
	if row := r.Row(t, hs[1].ID); row.Code != string(protocol.CodeTimeout) || row.Reason != "the cause" {
		t.Errorf("one of the three: %+v", row)
	}
	testkit.VerifyLog(t, r.Stores)
}

// The same garbage delivered to two orchestrators is kept once in Postgres.
func TestGarbageTwice(t *testing.T) {
	t.Parallel()
	r := rig(t)
	if a := r.Client.Append(t.Context(), protocol.StreamResult, [][]any{{"x", "y"}})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
	// One reads it, keeps it, and dies before acknowledging.
	es, err := r.Client.ReadNow(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, "dead", 1)
	if err != nil || len(es) != 1 {
		t.Fatal(err)
	}
	_, cause := protocol.DecodeOutcome(es[0].Values)
	if err := r.DeadLetter.Keep(t.Context(), []*protocol.DeadLetter{protocol.Garbage(protocol.StreamResult, es[0].ID, es[0].Values, cause, time.Now())}); err != nil {
		t.Fatal(err)
	}
	r.Start(t, r.Results.Run)
	applied(t, r)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items"); n != 1 {
		t.Errorf("%d dead letters of one entry", n)
	}
}

// A success whose result can't be stored becomes a permanent failure that says
// so: the handler's work is done, and running it again would end the same way.
func TestResultThatCannotBeStored(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	cases := []struct{ name, result, reason string }{
		{"not JSON", `{"a":`, "JSON"},
		{"escaped NUL", `{"a":"\u0000"}`, "NUL"},
		{"half a pair", `{"a":"\ud800"}`, "half a surrogate pair"},
		{"raw NUL", "{\"a\":\"\x00\"}", "NUL"},
		{"not UTF-8", "{\"a\":\"\xff\"}", "UTF-8"},
		{"too large", `"` + strings.Repeat("x", 9<<20) + `"`, "bytes"},
		{"much too deep", deep(2_000_000), ""},
	}
	r := rig(t)
	hs := fetched(t, r, len(cases)+4)
	for i, c := range cases {
		o := succeeded(hs[i])
		o.Result = []byte(c.result)
		r.Report(t, o)
	}
	fine := map[int]string{3: deep(9_990), 0: `"\\u0000 is no NUL"`, 1: "null", 2: deep(50)}
	for i, text := range fine {
		o := succeeded(hs[len(cases)+i])
		o.Result = []byte(text)
		if i == 1 {
			o.Result = nil
		}
		r.Report(t, o)
	}
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	applied(t, r)
	r.Ack(t, hs...)
	r.WaitState(t, protocol.StateFailed, ids(hs[:len(cases)])...)
	for i, c := range cases {
		row := r.Row(t, hs[i].ID)
		if row.Attempt != 1 || row.Code != string(protocol.CodeExecutionFailed) || !strings.Contains(row.Reason, "result") || !strings.Contains(row.Reason, c.reason) {
			t.Errorf("%s: %+v; want a permanent failure that names the result", c.name, row)
		}
	}
	for i, text := range fine {
		if row := r.Row(t, hs[len(cases)+i].ID); row.State != protocol.StateSucceeded || row.Result != text {
			t.Errorf("%.40s: %+v, want it succeeded", text, row)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}

// Postgres refuses one outcome's data. The others of its batch are applied, and
// the task is not run again for ever.
func TestPoisonOutcomeDoesNotBlockTheBatch(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 40)
	// A constraint stands for whatever Postgres may not like in a result.
	if _, err := r.DB.Exec(t.Context(), "ALTER TABLE tasks ADD CONSTRAINT poison CHECK (result IS NULL OR result::text <> '\"poison\"')"); err != nil {
		t.Fatal(err)
	}
	var good []protocol.ID
	for i, h := range hs {
		o := succeeded(h)
		if i == 7 || i == 20 {
			o.Result = []byte(`"poison"`)
		} else {
			good = append(good, h.ID)
		}
		r.Report(t, o)
	}
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	r.WaitState(t, protocol.StateSucceeded, good...)
	r.WaitState(t, protocol.StateFailed, hs[7].ID, hs[20].ID)
	if row := r.Row(t, hs[7].ID); !strings.Contains(row.Reason, "poison") {
		t.Errorf("%+v; want the reason to be Postgres' own", row)
	}
	applied(t, r)
	r.Ack(t, hs...)
	testkit.VerifyLog(t, r.Stores)
}

// An outcome that Postgres refuses in whatever form is kept as a dead letter.
func TestOutcomeRefusedInAnyForm(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 10)
	if _, err := r.DB.Exec(t.Context(), "ALTER TABLE tasks ADD CONSTRAINT poison CHECK (worker_id IS DISTINCT FROM 'poison')"); err != nil {
		t.Fatal(err)
	}
	for i, h := range hs {
		o := succeeded(h)
		if i == 4 {
			o.WorkerID = "poison"
		}
		r.Report(t, o)
	}
	r.Start(t, r.Results.Run)
	applied(t, r)
	r.Ack(t, hs...)
	r.WaitState(t, protocol.StateSucceeded, append(ids(hs[:4]), ids(hs[5:])...)...)
	if row := r.Row(t, hs[4].ID); row.State != protocol.StateQueued {
		t.Errorf("%+v, want it untouched", row)
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND stream = 'stream:result' AND error LIKE '%poison%'"); n != 1 {
		t.Errorf("%d dead letters, want 1 that gives Postgres' reason", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// Error texts of any length and encoding are stored in a form that fits.
func TestHugeErrorTexts(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 2)
	a, b := failed(hs[0], false), failed(hs[1], true)
	a.Error, b.Error = strings.Repeat("é\x00\xff", 1<<20), string(bytes.Repeat([]byte{0}, 100))
	r.Report(t, a, b)
	r.Start(t, r.Results.Run)
	applied(t, r)
	r.Ack(t, hs...)
	if row := r.Row(t, hs[0].ID); row.State != protocol.StateDLQPending || len(row.Reason) > 5000 || !strings.HasPrefix(row.Reason, "é") {
		t.Errorf("state %s, reason of %d bytes", row.State, len(row.Reason))
	}
	if row := r.Row(t, hs[1].ID); row.State != protocol.StateRetrying {
		t.Errorf("%+v", row)
	}
	testkit.VerifyEvents(t, r.Stores)
}
