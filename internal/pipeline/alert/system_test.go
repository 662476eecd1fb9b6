package alert_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// watch collects the alerts that an orchestrator tells a caller about.
func watch(t *testing.T, url, tenant string) <-chan *penstockv1.Event {
	t.Helper()
	stream, err := testkit.Client(t, url).RPC().WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{
		Tenant: tenant, Types: []string{string(protocol.EventAlertRaised)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan *penstockv1.Event, 100)
	if !stream.Receive() { // its position: what comes after is seen
		t.Fatalf("watch: %v", stream.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for stream.Receive() {
			for _, e := range stream.Msg().Events {
				events <- e
			}
		}
	}()
	t.Cleanup(func() { _ = stream.Close(); <-done })
	return events
}

// next takes the next n alerts as "tenant seq" and checks their form.
func next(t *testing.T, events <-chan *penstockv1.Event, n int) string {
	t.Helper()
	var got []string
	for range n {
		select {
		case e := <-events:
			id := protocol.AlertID(protocol.AlertDLQGrowth, e.Tenant).String()
			if e.TaskId != id || e.Status != "" || e.Actor != "alerts" || e.Reason == "" || !strings.Contains(string(e.Data), `"kind":"dlq_growth"`) {
				t.Errorf("%v", e)
			}
			got = append(got, e.Tenant+" "+strings.TrimPrefix(e.EventId, "evt_"+id+"_"))
		case <-time.After(testkit.Deadline):
			t.Fatalf("only %v, want %d", got, n)
		}
	}
	if len(events) > 0 {
		t.Errorf("one more: %v", <-events)
	}
	return strings.Join(got, ", ")
}

// metrics is what an orchestrator exports.
func metrics(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// shows waits until an orchestrator exports all of these lines.
func shows(t *testing.T, url string, lines ...string) {
	t.Helper()
	testkit.Eventually(t, "metrics "+strings.Join(lines, ", "), func() (bool, string) {
		all := metrics(t, url)
		for _, l := range lines {
			if !strings.Contains(all, "\n"+l+"\n") {
				return false, strings.Join(regexp.MustCompile(`(?m)^penstock_(alert|task|retrying).*`).FindAllString(all, -1), "\n")
			}
		}
		return true, ""
	})
}

// Two orchestrators, a worker whose handler fails, callers who name their
// tenant and callers who do not: from the dead letters to the event, the
// metrics, the end of the alert, and the next one.
func TestDLQGrowthOfASystem(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Alerts.Interval, cfg.Alerts.Window, cfg.Alerts.DLQGrowth = 100*time.Millisecond, 5*time.Second, 5
	urls := []string{testkit.StartOrchestrator(t, cfg).URL, testkit.StartOrchestrator(t, cfg).URL}
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("doomed", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(errors.New("no"))
		})
	})
	fail := func(tenant string, n int) {
		t.Helper()
		reqs := make([]*task.Request, n)
		for i := range reqs {
			reqs[i] = &task.Request{Type: "doomed", Tenant: tenant, Payload: json.RawMessage(`1`)}
		}
		results, err := testkit.Client(t, urls[0]).EnqueueMany(t.Context(), reqs)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first, second, acme := watch(t, urls[0], ""), watch(t, urls[1], ""), watch(t, urls[1], "acme")
	fail("acme", 8)
	if got := next(t, acme, 1); got != "acme 1" {
		t.Errorf("acme is told about %q", got)
	}
	fail("", 8)
	for i, events := range []<-chan *penstockv1.Event{first, second} {
		if got := next(t, events, 2); got != "acme 1, default 1" {
			t.Errorf("orchestrator %d tells about %q", i, got)
		}
		shows(t, urls[i], `penstock_alert_firing{kind="invalid_transitions"} 0`)
	}
	for _, url := range urls {
		shows(t, url, `penstock_alert_firing{kind="dlq_growth"} 0`)
	}
	fail("acme", 8)
	for i, events := range []<-chan *penstockv1.Event{first, second, acme} {
		if got := next(t, events, 1); got != "acme 2" {
			t.Errorf("watcher %d is told about %q", i, got)
		}
	}
	raisedTotal := regexp.MustCompile(`penstock_alerts_raised_total\{kind="dlq_growth"\} (\d)`)
	sum := 0
	for _, url := range urls {
		sum += int(raisedTotal.FindStringSubmatch(metrics(t, url))[1][0] - '0')
	}
	if sum != 3 {
		t.Errorf("the orchestrators count %d alerts raised, want 3 between them", sum)
	}
	testkit.VerifyLog(t, s)
}

func TestFigures(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	cfg := rs[0].Config()
	cfg.Alerts.Interval, cfg.Recovery.ReconcileInterval, cfg.Recovery.VisibilityTimeout = 100*time.Millisecond, time.Hour, time.Hour
	live(t, rs[0], map[protocol.State]int{"retrying": 3, "running": 2, "pending": 7})
	url := testkit.StartOrchestrator(t, cfg).URL
	shows(t, url, `penstock_tasks{state="retrying"} 3`, `penstock_tasks{state="running"} 2`, `penstock_tasks{state="pending"} 7`, `penstock_tasks{state="queued"} 0`,
		`penstock_retrying_share 0.6`, `penstock_alert_firing{kind="retrying_share"} 0`, `penstock_alerts_raised_total{kind="retrying_share"} 0`)
	live(t, rs[0], map[protocol.State]int{"retrying": 300, "queued": 100})
	shows(t, url, `penstock_tasks{state="retrying"} 300`, `penstock_tasks{state="running"} 0`, `penstock_alerts_raised_total{kind="retrying_share"} 1`,
		`penstock_alert_firing{kind="retrying_share"} 1`, `penstock_alert_value{kind="retrying_share"} 75`)
}

// The Prometheus rules parse, have the orchestrator's own, and name only metrics
// that there are.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/metrics.md") // which is compared with what programs serve
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`penstock_\w+`).FindAllString(string(text), -1)
	if len(names) == 0 {
		t.Error("no rule names a metric")
	}
	for _, name := range names {
		if !strings.Contains(string(page), "\n| `"+regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")+"` |") {
			t.Errorf("%s is not a metric of docs/metrics.md", name)
		}
	}
	severity, rules := map[string]string{}, 0
	for _, g := range file.Groups {
		rules += len(g.Rules)
		for _, r := range g.Rules {
			if m := regexp.MustCompile(`kind="(\w+)"`).FindStringSubmatch(r.Expr); m != nil {
				severity[m[1]] = r.Labels["severity"]
			}
			if r.Alert == "" || r.Expr == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("rule %q is not complete", r.Alert)
			}
		}
	}
	for _, k := range protocol.AlertKinds() {
		if severity[string(k)] != k.Severity() {
			t.Errorf("%s has severity %q, want %s", k, severity[string(k)], k.Severity())
		}
	}

	// What is said of them is so.
	readme, err := os.ReadFile("../../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	numbers := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
	kinds := len(protocol.AlertKinds())
	for _, want := range []string{"raise " + numbers[kinds] + " alerts themselves", "and " + numbers[rules-kinds] + " more: "} {
		if !strings.Contains(string(readme), want) {
			t.Errorf("deploy/README.md does not say %q: there are %d kinds of alerts and %d rules", want, kinds, rules)
		}
	}
}
