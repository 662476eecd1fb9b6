package app

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/task"
)

// documented is a row of docs/metrics.md.
type documented struct {
	typ    string
	labels []string
}

// page reads a section of docs/metrics.md.
func page(t *testing.T, section string) map[string]documented {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("docs/metrics.md has no section %s", section)
	}
	part, _, _ := strings.Cut(after, "\n## ")
	out := map[string]documented{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(penstock_\\w+)` \\| (\\w+) \\|([^|]*)\\| [^|]+\\|$").FindAllStringSubmatch(part, -1) {
		d := documented{typ: row[2]}
		for _, l := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[3], -1) {
			d.labels = append(d.labels, l[1])
		}
		slices.Sort(d.labels)
		if _, twice := out[row[1]]; twice {
			t.Errorf("docs/metrics.md has %s twice", row[1])
		}
		out[row[1]] = d
	}
	if rows := strings.Count(part, "\n| `"); rows != len(out) {
		t.Errorf("section %s has %d rows, of which %d can be read", section, rows, len(out))
	}
	return out
}

// registered are the metrics of a registry, those without a series included, but
// for the process' own. The type is what a series shows, else what the name says.
func registered(t *testing.T, r *prometheus.Registry) map[string]documented {
	t.Helper()
	out := map[string]documented{}
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); r.Describe(descs) }()
	form := regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: .*, variableLabels: \{([\w,]*)\}\}$`)
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%s", d)
		}
		if !strings.HasPrefix(m[1], "penstock_") {
			continue
		}
		f := documented{}
		if strings.HasSuffix(m[1], "_total") {
			f.typ = "counter"
		}
		if m[2] != "" {
			f.labels = strings.Split(m[2], ",")
		}
		slices.Sort(f.labels)
		out[m[1]] = f
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if d, ok := out[f.GetName()]; ok {
			d.typ = strings.ToLower(f.GetType().String())
			out[f.GetName()] = d
		}
	}
	return out
}

func compare(t *testing.T, who string, written, served map[string]documented) {
	t.Helper()
	for name, s := range served {
		w, ok := written[name]
		switch {
		case !ok:
			t.Errorf("%s: %s is not in docs/metrics.md", who, name)
		case s.typ != "" && w.typ != s.typ, !slices.Equal(w.labels, s.labels):
			t.Errorf("%s: %s is written down as %v, it is %v", who, name, w, s)
		}
	}
	for name := range written {
		if _, ok := served[name]; !ok {
			t.Errorf("%s: %s is in docs/metrics.md, and not served", who, name)
		}
	}
}

// The page lists what orchestrators and workers serve, and nothing else.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	cfg, w := testConfig(migratedDatabase(t), devtest.Redis(t)), config.DefaultWorker()
	cfg.InternalJobs.Enabled, cfg.Alerts.Interval = true, 100*time.Millisecond
	cfg.Metrics.Types = []string{"named"}
	w.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}, "named": {Kind: "echo"}}
	w.HealthListen = freeAddr(t)
	d, err := StartDev(t.Context(), DevOptions{Orchestrator: cfg, Worker: w, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = d.Close()
	})
	url := "http://" + d.Orchestrator.Addr()
	c, err := client.New(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, r := range []task.Request{{Type: "named", Payload: []byte(`1`)}, {Type: "echo", Queue: "default", Payload: []byte(`1`)}} {
		e, err := c.EnqueueTask(t.Context(), &r)
		if err == nil {
			_, err = c.Wait(t.Context(), "", e.TaskID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	serves := func(url string, lines ...string) string {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; <-time.After(10 * time.Millisecond) {
			_, body := get(t, url+"/metrics")
			missing := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(body, "\n"+l+"\n") })
			if len(missing) == 0 {
				return body
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not there: %q\n%s", url, missing, body)
			}
		}
	}
	serves(url, `penstock_tasks_enqueued_total{outcome="created",queue="default",type="named"} 1`, `penstock_tasks_enqueued_total{outcome="created",queue="default",type="other"} 1`,
		`penstock_executions_started_total{queue="default",type="named"} 1`, `penstock_executions_finished_total{outcome="succeeded",queue="default",type="other"} 1`,
		`penstock_tasks_finished_total{queue="default",state="succeeded",type="named"} 1`, `penstock_start_latency_seconds_count{queue="default",type="named"} 1`,
		`penstock_run_time_seconds_count{queue="default",type="named"} 1`, `penstock_queue_depth{queue="default"} 0`,
		`penstock_queue_oldest_age_seconds{queue="default"} 0`, `penstock_alert_firing{kind="retrying_share"} 0`)
	compare(t, "orchestrator", page(t, "Orchestrators"), registered(t, d.Orchestrator.registry))
	text := serves("http://"+w.HealthListen, `penstock_worker_slots 10`)
	served := map[string]documented{} // all of them have series from the start
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (penstock_\w+) (\w+)\npenstock_\w+(?:\{(\w+)=)?`).FindAllStringSubmatch(text, -1) {
		d := documented{typ: m[2]}
		if m[3] != "" {
			d.labels = []string{m[3]}
		}
		served[m[1]] = d
	}
	compare(t, "worker", page(t, "Workers"), served)
}
