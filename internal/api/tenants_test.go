package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// mark is in everything of tenant acme that the test makes.
const mark = "acme-secret"

// tenants is an orchestrator with principals of two tenants, and what belongs to
// the first.
type tenants struct {
	testkit.Stores
	url string
	ids map[string]string // placeholders of the table below
}

// everyRole but admin, who is bound to no tenant.
const everyRole = "producer,worker,operator,approver,viewer,payloads"

func startTenants(t *testing.T) *tenants {
	t.Helper()
	s := &tenants{Stores: testkit.NewStores(t), ids: map[string]string{}}
	cfg := s.Config()
	cfg.Auth.TokensFile = filepath.Join(t.TempDir(), "tokens")
	lines := "root root-0123456789abcdef roles=admin\n" +
		"acme acme-0123456789abcdef roles=" + everyRole + " tenants=acme\n" +
		"amy amyy-0123456789abcdef roles=" + everyRole + " tenants=acme,third\n" +
		"blue blue-0123456789abcdef roles=" + everyRole + " tenants=blue\n"
	if err := os.WriteFile(cfg.Auth.TokensFile, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	s.url = testkit.StartOrchestrator(t, cfg).URL
	s.StartWorker(t, worker.Options{OrchestratorURL: s.url, OrchestratorToken: "root-0123456789abcdef"}, func(w *worker.Worker) {
		w.HandleRaw("works", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			return worker.Once(ctx, "charge", func(context.Context) (json.RawMessage, error) { return json.RawMessage(`"` + mark + `"`), nil })
		})
		w.HandleRaw("fails", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(errors.New(mark))
		})
		w.HandleRaw("runs", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	s.populate(t)
	return s
}

// populate makes what belongs to acme.
func (s *tenants) populate(t *testing.T) {
	t.Helper()
	must := func(who, method, body string) map[string]any {
		t.Helper()
		status, text := s.call(t, who, method, s.fill(body))
		var out map[string]any
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", method, body, status, text)
		}
		return out
	}
	must("root", "ApprovalService/SaveRule", `{"name":"ask","rule":{"name":"ask","expression":"task.type == 'asks'","required":1,"approvers":["role:approver"],"timeout_ms":"3600000","enabled":true}}`)
	enqueue := func(as, fields string) {
		t.Helper()
		out := must("acme", "TaskService/Enqueue", `{"payload":"`+mark+`",`+fields+`}`)
		s.ids[as] = out["task"].(map[string]any)["task_id"].(string)
	}
	wait := func(id, state string) {
		t.Helper()
		testkit.Eventually(t, id+" is "+state, func() (bool, string) {
			_, text := s.call(t, "acme", "TaskService/GetTask", `{"task_id":"`+s.ids[id]+`"}`)
			return strings.Contains(text, `"state":"`+state+`"`), text
		})
	}
	enqueue("TASK", `"type":"works","idempotency_key":"`+mark+`-key","trace_id":"`+mark+`-trace"`)
	enqueue("NAMED", `"type":"works","task_id":"`+mark+`-name"`)
	enqueue("FAILED", `"type":"fails"`)
	enqueue("FAILED2", `"type":"fails"`)
	enqueue("ASKS", `"type":"asks"`)
	enqueue("LATER", `"type":"works","schedule_type":"delay","delay_ms":"3600000"`)
	enqueue("RUNS", `"type":"runs"`)
	enqueue("DEPENDS", `"type":"works","depends_on":[{"task_id":"`+s.ids["RUNS"]+`"}]`)
	for id, state := range map[string]string{"TASK": "succeeded", "NAMED": "succeeded", "FAILED": "failed", "FAILED2": "failed", "RUNS": "running"} {
		wait(id, state)
	}
	dead := must("acme", "DeadLetterService/ListDeadLetters", `{}`)["dead_letters"].([]any)
	for i, as := range []string{"DLQ2", "DLQ"} {
		s.ids[as] = dead[i].(map[string]any)["dlq_id"].(string)
	}
	s.ids["APPROVAL"] = must("acme", "ApprovalService/ListApprovals", `{}`)["approvals"].([]any)[0].(map[string]any)["approval_id"].(string)
	s.ids["BATCH"] = "0198a000-0000-7000-8000-0000000000aa"
	must("acme", "DeadLetterService/CreateDeadLetterBatch", `{"batch_id":"$BATCH","dlq_ids":["$DLQ"],"dry_run":true,"reason":"`+mark+`"}`)
	s.ids["DISCARD"] = "0198a000-0000-7000-8000-0000000000bb"
	must("acme", "DeadLetterService/ProposeDiscard", `{"batch_id":"$DISCARD","dlq_ids":["$DLQ2"],"reason":"`+mark+`"}`)
	must("acme", "ScheduleService/CreateSchedule", `{"name":"`+mark+`-schedule","spec":{"cron":"0 0 1 1 *","task":{"type":"works","payload":"`+mark+`"}}}`)
	s.ids["SCHEDULE"] = mark + "-schedule"
	s.ids["KEY"], s.ids["SCOPE"] = mark+"-key", "acme"
	s.ids["TRACE"] = mark + "-trace"
}

// unknown stands for each placeholder where nobody has such a thing.
func (s *tenants) unknown(placeholder string) string {
	switch known := s.ids[placeholder]; {
	case placeholder == "SCOPE":
		return "nobodys"
	case strings.HasPrefix(known, mark):
		return "no" + known
	default:
		return known[:len(known)-4] + "dead"
	}
}

// fill puts the ids of acme's into a request.
func (s *tenants) fill(body string) string {
	return s.replace(body, func(p string) string { return s.ids[p] })
}

func (s *tenants) replace(body string, with func(string) string) string {
	names := make([]string, 0, len(s.ids))
	for p := range s.ids {
		names = append(names, p)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
	for _, p := range names {
		body = strings.ReplaceAll(body, "$"+p, with(p))
	}
	return body
}

// call makes a Connect call in JSON.
func (s *tenants) call(t *testing.T, who, method, body string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/penstock.v1."+method, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+(who + "y")[:4]+"-0123456789abcdef")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// requests has a request of every unary RPC that keeps to tenants: what names
// something does so by the placeholders of populate. after: it changes or ends what
// others name, so its owner calls it last.
var requests = []struct {
	method, body string
	after        bool
	// lists: what is not the caller's is left out, instead of not being found.
	lists bool
}{
	{method: "TaskService/Enqueue", body: `{"type":"works","depends_on":[{"task_id":"$TASK"}]}`},
	{method: "TaskService/Enqueue", body: `{"type":"works","idempotency_scope":"$SCOPE","idempotency_key":"$KEY","task_id":"0198a000-0000-7000-8000-000000000001"}`, lists: true},
	{method: "TaskService/EnqueueBatch", body: `{"tasks":[{"type":"works","depends_on":[{"task_id":"$TASK"}]}]}`},
	{method: "TaskService/GetTask", body: `{"task_id":"$TASK"}`},
	{method: "TaskService/GetTask", body: `{"task_id":"$NAMED"}`},
	{method: "TaskService/ListTasks", body: `{}`, lists: true},
	{method: "TaskService/CountTasks", body: `{}`, lists: true},
	{method: "TaskService/WaitTask", body: `{"task_id":"$TASK","timeout_ms":"1"}`},
	{method: "TaskService/ListEvents", body: `{"task_id":"$TASK"}`},
	{method: "TaskService/SearchEvents", body: `{"workflow_id":"$TASK"}`},
	{method: "TaskService/SearchEvents", body: `{"trace_id":"$TRACE"}`, lists: true},
	{method: "TaskService/SearchEvents", body: `{}`, lists: true},
	{method: "TaskService/ListStateEvents", body: `{"task_id":"$TASK"}`},
	{method: "TaskService/GetWorkflow", body: `{"workflow_id":"$TASK"}`},
	{method: "TaskService/CancelTask", body: `{"task_id":"$LATER"}`, after: true},
	{method: "TaskService/CancelTasks", body: `{"all_tasks":true,"dry_run":true}`, lists: true},
	{method: "TaskService/ListDependencies", body: `{"task_id":"$DEPENDS"}`},
	{method: "TaskService/GetTaskGraph", body: `{"task_id":"$DEPENDS"}`},
	{method: "TaskService/RescheduleTask", body: `{"task_id":"$LATER","schedule_type":"delay","delay_ms":"7200000"}`},
	{method: "TaskService/EraseTask", body: `{"task_id":"$TASK","reason":"r"}`, after: true},
	{method: "DeadLetterService/ListDeadLetters", body: `{}`, lists: true},
	{method: "DeadLetterService/GroupDeadLetters", body: `{}`, lists: true},
	{method: "DeadLetterService/GroupDeadLetters", body: `{"group_by":"tenant"}`, lists: true},
	{method: "DeadLetterService/GetDeadLetter", body: `{"dlq_id":"$DLQ"}`},
	{method: "DeadLetterService/RequeueDeadLetters", body: `{"dlq_ids":["$DLQ"]}`, after: true},
	{method: "DeadLetterService/EditDeadLetter", body: `{"dlq_id":"$DLQ","payload":1,"revision":0}`},
	{method: "DeadLetterService/CreateDeadLetterBatch", body: `{"dlq_ids":["$DLQ"],"dry_run":true}`},
	{method: "DeadLetterService/CreateDeadLetterBatch", body: `{"filter":{},"dry_run":true}`, lists: true},
	{method: "DeadLetterService/ProposeDiscard", body: `{"dlq_ids":["$DLQ"],"reason":"r"}`},
	{method: "DeadLetterService/ConfirmDiscard", body: `{"batch_id":"$DISCARD","digest":"` + strings.Repeat("0", 64) + `"}`},
	{method: "DeadLetterService/RejectDiscard", body: `{"batch_id":"$DISCARD"}`, after: true},
	{method: "DeadLetterService/GetDeadLetterBatch", body: `{"batch_id":"$BATCH","details":true}`},
	{method: "DeadLetterService/ListDeadLetterBatches", body: `{}`, lists: true},
	{method: "DeadLetterService/ListDeadLetterBatchItems", body: `{"batch_id":"$BATCH"}`},
	{method: "DeadLetterService/ControlDeadLetterBatch", body: `{"batch_id":"$BATCH","action":"cancel"}`, after: true},
	{method: "WorkerService/Heartbeat", body: `{"worker_id":"w","interval_ms":"1000","tasks":[{"id":"$RUNS","delivery":"1"}]}`},
	{method: "ApprovalService/ListApprovals", body: `{}`, lists: true},
	{method: "ApprovalService/ListApprovals", body: `{"task_id":"$ASKS"}`, lists: true},
	{method: "ApprovalService/GetApproval", body: `{"approval_id":"$APPROVAL"}`},
	{method: "ApprovalService/Approve", body: `{"approval_id":"$APPROVAL"}`},
	{method: "ApprovalService/Reject", body: `{"approval_id":"$APPROVAL","reason":"r"}`, after: true},
	{method: "ApprovalService/ApproveMany", body: `{"approval_ids":["$APPROVAL"]}`},
	{method: "ApprovalService/RejectMany", body: `{"approval_ids":["$APPROVAL"],"reason":"r"}`, after: true},
	{method: "ApprovalService/TestRule", body: `{"expression":"true","task":{"type":"t"}}`, lists: true},
	{method: "ScheduleService/UpdateSchedule", body: `{"schedule":"$SCHEDULE","spec":{"cron":"0 0 1 2 *","task":{"type":"works","payload":1}}}`},
	{method: "ScheduleService/GetSchedule", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/ListSchedules", body: `{}`, lists: true},
	{method: "ScheduleService/PauseSchedule", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/ResumeSchedule", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/TriggerSchedule", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/ListFires", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/NextFires", body: `{"schedule":"$SCHEDULE"}`},
	{method: "ScheduleService/DeleteSchedule", body: `{"schedule":"$SCHEDULE"}`, after: true},
	{method: "EffectService/ReserveEffect", body: `{"id":"$RUNS","delivery":"1","worker_id":"w","name":"x","token":"0198a000-0000-4000-8000-000000000001"}`},
	{method: "EffectService/CompleteEffect", body: `{"id":"$RUNS","delivery":"1","name":"x","token":"0198a000-0000-4000-8000-000000000001"}`},
	{method: "EffectService/ReleaseEffect", body: `{"id":"$RUNS","delivery":"1","name":"x","token":"0198a000-0000-4000-8000-000000000001"}`},
	{method: "EffectService/GetEffect", body: `{"scope":"$SCOPE","key":"$KEY","name":"charge"}`},
	{method: "EffectService/ListEffects", body: `{}`, lists: true},
	{method: "EffectService/ListEffects", body: `{"task_id":"$TASK"}`},
	{method: "EffectService/ListEffects", body: `{"scope":"$SCOPE"}`, lists: true},
	{method: "EffectService/ListEffects", body: `{"state":"in_doubt"}`, lists: true},
	{method: "EffectService/ResolveEffect", body: `{"scope":"$SCOPE","key":"$KEY","name":"charge","resolution":"done","reason":"r"}`},
	// Another one of the same name is another one.
	{method: "ScheduleService/CreateSchedule", body: `{"name":"$SCHEDULE","spec":{"cron":"0 0 1 1 *","task":{"type":"works","payload":1}}}`, lists: true},
}

// methods lists every RPC with what it declares.
func methods() map[string]protoreflect.MethodDescriptor {
	all := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		penstockv1.File_penstock_v1_tasks_proto, penstockv1.File_penstock_v1_deadletters_proto, penstockv1.File_penstock_v1_workers_proto,
		penstockv1.File_penstock_v1_approvals_proto, penstockv1.File_penstock_v1_schedules_proto, penstockv1.File_penstock_v1_effects_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				all[string(service.Name())+"/"+string(m.Name())] = m
			}
		}
	}
	return all
}

// Every RPC that keeps to tenants is in the table.
func TestEveryMethodKeepsToTenants(t *testing.T) {
	t.Parallel()
	have := map[string]bool{"TaskService/WatchEvents": true} // TestWatchOfATenant
	for _, r := range requests {
		have[r.method] = true
	}
	for name, m := range methods() {
		if own := auth.TenancyOf(m) == penstockv1.Tenancy_TENANCY_OWN; own != have[name] {
			t.Errorf("%s: keeps to tenants %v, in the table %v", name, own, have[name])
		}
	}
}

// Whoever is bound to another tenant is told of what is acme's what they are told of
// what nobody has, and changes nothing; acme's own finds it.
func TestTenantsAreABoundary(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	log := func() string {
		return fmt.Sprint(s.count(t, `SELECT count(*) FROM event_log e JOIN tasks t ON t.id = e.task_id WHERE t.tenant = 'acme' AND e.type NOT IN ('task.heartbeat', 'task.progress')`),
			s.count(t, `SELECT count(*) FROM dlq_batches WHERE created_by <> 'blue'`), s.count(t, `SELECT COALESCE(sum(revision), 0) FROM schedules WHERE tenant = 'acme'`))
	}
	before := log()
	for _, r := range requests {
		t.Run("foreign/"+r.method+" "+r.body, func(t *testing.T) {
			status, got := s.call(t, "blue", r.method, s.fill(r.body))
			if !r.lists {
				wantStatus, want := s.call(t, "blue", r.method, s.replace(r.body, s.unknown))
				if status != wantStatus || s.replaceIDs(got, true) != s.replaceIDs(want, false) {
					t.Errorf("of acme's: %d %s\nof nobody's: %d %s", status, got, wantStatus, want)
				}
			}
			if shown := s.replaceIDs(got, true); strings.Contains(shown, mark) || strings.Contains(shown, `"acme"`) {
				t.Errorf("shows what is acme's: %s", got)
			}
			input := methods()[r.method].Input()
			if input.Fields().ByName("tenant") == nil {
				return
			}
			named := `{"tenant":"acme",` + strings.TrimPrefix(s.fill(r.body), "{")
			if status, got := s.call(t, "blue", r.method, strings.Replace(named, ",}", "}", 1)); status != http.StatusForbidden || !strings.Contains(got, "bound to blue") {
				t.Errorf("of tenant acme by name: %d %s", status, got)
			}
		})
	}
	if now := log(); now != before {
		t.Errorf("acme's record was %s, is %s", before, now)
	}
	for _, after := range []bool{false, true} {
		for _, r := range requests {
			if r.after != after {
				continue
			}
			t.Run("own/"+r.method+" "+r.body, func(t *testing.T) {
				status, got := s.call(t, "acme", r.method, s.fill(r.body))
				if status == http.StatusNotFound || status == http.StatusForbidden && !strings.Contains(got, "proposed") && !strings.Contains(got, "hand in") && !strings.Contains(got, "asked") ||
					status >= http.StatusInternalServerError {
					t.Errorf("%d %s", status, got)
				}
			})
		}
	}
}

func (s *tenants) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := s.SQL(t).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var details = regexp.MustCompile(`"value":"[^"]*",`)

// replaceIDs takes the ids out of an answer that the request named.
func (s *tenants) replaceIDs(text string, known bool) string {
	text = details.ReplaceAllString(text, "") // the same again, in base64
	var ids []string
	for p, id := range s.ids {
		if !known {
			id = s.unknown(p)
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return len(b) - len(a) }) // one may be in another
	for _, id := range ids {
		text = strings.ReplaceAll(text, id, "ID")
	}
	return text
}

// What is about every tenant takes somebody who is bound to none.
func TestWhatIsAboutEveryTenant(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	for name, m := range methods() {
		switch auth.TenancyOf(m) {
		case penstockv1.Tenancy_TENANCY_EVERY:
			if status, got := s.call(t, "acme", name, `{}`); status != http.StatusForbidden {
				t.Errorf("%s: %d %s", name, status, got)
			}
		case penstockv1.Tenancy_TENANCY_NONE:
			if status, got := s.call(t, "acme", name, `{}`); status != http.StatusOK || strings.Contains(got, mark) {
				t.Errorf("%s: %d %s", name, status, got)
			}
		case penstockv1.Tenancy_TENANCY_UNSPECIFIED:
			t.Errorf("%s does not say how it keeps to tenants", name)
		}
	}
	if status, got := s.call(t, "root", "TaskService/GetTask", s.fill(`{"task_id":"$TASK","tenant":"acme"}`)); status != http.StatusOK {
		t.Errorf("an admin: %d %s", status, got)
	}
	// What a task waits for tells them nothing of a queue that others share.
	var out struct {
		Task struct {
			ID string `json:"task_id"`
		}
	}
	status, got := s.call(t, "acme", "TaskService/Enqueue", `{"type":"works","queue":"quiet"}`)
	if err := json.Unmarshal([]byte(got), &out); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, got)
	}
	waits := func(who string) string {
		_, got := s.call(t, who, "TaskService/GetTask", fmt.Sprintf(`{"task_id":%q,"tenant":"acme"}`, out.Task.ID))
		return got
	}
	testkit.Eventually(t, "it is in its stream", func() (bool, string) {
		got := waits("root")
		return strings.Contains(got, "1 are not fetched"), got
	})
	if got := waits("acme"); !strings.Contains(got, `"waits_for":"a worker of queue quiet to fetch it"`) {
		t.Errorf("it waits for: %s", got)
	}
	// Bound to two, one names the tenant.
	if status, got := s.call(t, "amy", "TaskService/ListTasks", `{}`); status != http.StatusBadRequest || !strings.Contains(got, "acme, third") {
		t.Errorf("a list of two tenants: %d %s", status, got)
	}
	if status, got := s.call(t, "amy", "TaskService/ListTasks", `{"tenant":"acme"}`); status != http.StatusOK || !strings.Contains(got, mark) {
		t.Errorf("a list of one of two tenants: %d %s", status, got)
	}
	if status, got := s.call(t, "amy", "DeadLetterService/GetDeadLetterBatch", s.fill(`{"batch_id":"$BATCH"}`)); status != http.StatusOK {
		t.Errorf("a batch of one of two tenants: %d %s", status, got)
	}
}

// A watch by somebody who is bound sees the events of their tenant alone.
func TestWatchOfATenant(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/events/watch?position=earliest", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer blue-0123456789abcdef")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if status, got := s.call(t, "blue", "TaskService/Enqueue", `{"type":"works","payload":"the last"}`); status != http.StatusOK {
		t.Fatal(got)
	}
	var seen []byte
	for buf := make([]byte, 4096); !bytes.Contains(seen, []byte(`"task.created"`)); {
		n, err := res.Body.Read(buf)
		seen = append(seen, buf[:n]...)
		if err != nil {
			t.Fatalf("%v after %s", err, seen)
		}
	}
	if bytes.Contains(seen, []byte("acme")) {
		t.Errorf("%s", seen)
	}
}
