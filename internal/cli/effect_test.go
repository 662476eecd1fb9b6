package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	workersToken = "the-token-of-a-worker-here"
	adasToken    = "the-token-of-ada-over-here"
	bobsToken    = "the-token-of-bob-over-here"
)

func TestEffectCommands(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Effects.DoubtAfter = 0
	cfg.Auth.TokensFile = filepath.Join(t.TempDir(), "tokens")
	lines := "w " + workersToken + " roles=worker\nada " + adasToken + " roles=operator,payloads\nbob " + bobsToken + " roles=producer,operator\n"
	if err := os.WriteFile(cfg.Auth.TokensFile, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	o := testkit.StartOrchestrator(t, cfg)
	as := func(token string, args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL, "--token", token)...)
	}
	ada := func(args ...string) ran { t.Helper(); return as(adasToken, append([]string{"effect"}, args...)...) }
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := ada("list")
		return r.code == 0, r.err
	})
	// Two tasks whose effects differ in nothing but the kind of their key; both are
	// in doubt, because their executions are over.
	worker, err := client.NewWith(o.URL, client.Options{Token: workersToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Close() })
	want(t, "keyed", as(bobsToken, "enqueue", "t", "{}", "--key", "order-17"), ExitOK)
	want(t, "named", as(bobsToken, "enqueue", "t", "{}", "--id", "order-17"), ExitOK)
	rig := testkit.NewRig(t, s, cfg)
	for _, h := range rig.Fetch(t, "w1", 2) {
		_, err := worker.Effects().ReserveEffect(t.Context(), connect.NewRequest(&penstockv1.ReserveEffectRequest{
			Id: h.ID.String(), Delivery: h.Delivery, WorkerId: "w1", MessageId: h.MessageID, Name: "charge", Token: uuid.NewString(),
		}))
		if err != nil {
			t.Fatal(err)
		}
		rig.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		rig.WaitState(t, protocol.StateSucceeded, h.ID)
	}

	r := ada("list", "--in-doubt")
	tells(t, r, "SCOPE", "KIND", "in_doubt")
	if got := strings.Join(strings.Fields(r.out), " "); !strings.Contains(got, "default key order-17 charge in_doubt") || !strings.Contains(got, "default task order-17 charge in_doubt") {
		t.Errorf("list: %s", r.out)
	}
	if r = ada("list", "--task", "order-17"); strings.Count(r.out, "charge") != 1 || !strings.Contains(r.out, "task") {
		t.Errorf("list of a task: %s%s", r.out, r.err)
	}
	r = ada("list", "--limit", "1", "-o", "json")
	list := decode(t, r.out)
	if page, _ := list["next_page_token"].(string); page == "" || len(list["effects"].([]any)) != 1 {
		t.Errorf("page: %s", r.out)
	} else if r = ada("list", "--limit", "1", "--page-token", page); !strings.Contains(r.out, "task") {
		t.Errorf("next page: %s%s", r.out, r.err)
	}
	want(t, "both flags", ada("list", "--in-doubt", "--state", "done"), ExitUsage)
	want(t, "no such state", ada("list", "--state", "lost"), ExitUsage, "in_doubt")

	want(t, "which of them", ada("show", "order-17", "charge"), ExitUsage, "key_kind")
	tells(t, ada("show", "order-17", "charge", "--kind", "task"), "charge of task order-17 in scope default", "in_doubt", "by w1")
	if r = ada("show", "order-17", "charge", "--kind", "key", "-o", "json"); decode(t, r.out)["key_kind"] != "key" {
		t.Errorf("show: %s%s", r.out, r.err)
	}
	want(t, "nothing there", ada("show", "order-18", "charge"), ExitNotFound, "TASK_NOT_FOUND")
	want(t, "one argument", ada("show", "order-17"), ExitUsage)

	resolve := []string{"resolve", "order-17", "charge", "--kind", "key", "--reason", "the bank has it"}
	want(t, "neither", ada(resolve...), ExitUsage, "--done")
	want(t, "both", ada(append(resolve, "--done", "--not-done")...), ExitUsage, "--done")
	want(t, "no reason", ada("resolve", "order-17", "charge", "--kind", "key", "--done"), ExitUsage, "reason")
	want(t, "no JSON", ada(append(resolve, "--done", "--result", "{")...), ExitUsage, "result")
	want(t, "a requester", as(bobsToken, append([]string{"effect"}, append(resolve, "--done")...)...), ExitDenied, "had a hand")
	tells(t, ada(append(resolve, "--done", "--result", `{"receipt":7}`)...), "charge of key order-17 is done; 0 tasks go on")
	tells(t, ada(append(resolve, "--done")...), "it was before")
	want(t, "otherwise", ada(append(resolve, "--not-done")...), ExitConflict, "done already")
	tells(t, ada("show", "order-17", "charge", "--kind", "key"), `{"receipt":7}`, "by ada: the bank has it")
	tells(t, ada("list", "--in-doubt"), "task")
	r = ada("resolve", "order-17", "charge", "--kind", "task", "--not-done", "--reason", "no trace of it", "-o", "json")
	if m := decode(t, r.out); m["effect"].(map[string]any)["state"] != "free" {
		t.Errorf("resolved: %s", r.out)
	}
}
