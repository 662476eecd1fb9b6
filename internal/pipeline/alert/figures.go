package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/protocol"
)

// maxShown bounds the alerts that the metrics count.
const maxShown = 500

func newRaised() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_alerts_raised_total", Help: "Alerts that this process raised, by kind.",
	}, []string{"kind"})
	for _, k := range protocol.AlertKinds() {
		v.WithLabelValues(string(k))
	}
	return v
}

// figures are the gauges. They come from the database, whoever evaluated last,
// so every replica shows the same; together they change at once.
type figures struct {
	mu        sync.Mutex
	evaluated time.Time
	tasks     counts
	firing    map[string]figure

	tasksDesc, shareDesc, firingDesc, valueDesc, evaluatedDesc *prometheus.Desc
}

// figure is how many alerts of a kind are firing, and the most that was measured
// for one.
type figure struct {
	alerts int
	most   float64
}

func newFigures() *figures {
	return &figures{
		tasksDesc: prometheus.NewDesc("penstock_tasks", "Live tasks by state, as of the last evaluation of alerts; the same at every orchestrator.", []string{"state"}, nil),
		shareDesc: prometheus.NewDesc("penstock_retrying_share",
			"Part of the tasks under way (due or begun, not finished) that is retrying, 0 to 1, as of the last evaluation of alerts.", nil, nil),
		firingDesc: prometheus.NewDesc("penstock_alert_firing",
			"Alerts of a kind that are firing: of dlq_growth one for each tenant; the same at every orchestrator.", []string{"kind"}, nil),
		valueDesc: prometheus.NewDesc("penstock_alert_value",
			"What was last measured for an alert that is firing, the most of any tenant: percent, dead letters, or refused outcomes; 0 for redis_lost.", []string{"kind"}, nil),
		evaluatedDesc: prometheus.NewDesc("penstock_alerts_evaluated_timestamp_seconds", "When the alerts were last evaluated, by Postgres' clock.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.tasksDesc, f.shareDesc, f.firingDesc, f.valueDesc, f.evaluatedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (f *figures) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if f.evaluated.IsZero() {
		return
	}
	gauge(f.evaluatedDesc, float64(f.evaluated.UnixMilli())/1000)
	for _, state := range protocol.States() {
		if !state.Terminal() {
			gauge(f.tasksDesc, float64(f.tasks[state]), string(state))
		}
	}
	gauge(f.shareDesc, f.tasks.share())
	// Of which tenants they are is told by events alone: whoever reaches the port
	// may read metrics.
	for _, k := range protocol.AlertKinds() {
		kind := string(k)
		firing := f.firing[kind]
		gauge(f.firingDesc, float64(firing.alerts), kind)
		if firing.alerts > 0 {
			gauge(f.valueDesc, firing.most, kind)
		}
	}
}

// readFigures returns how long it is until the next evaluation.
func (s *Stage) readFigures(ctx context.Context) (wait time.Duration, err error) {
	round, err := s.o.Store.GetAlertRound(ctx, s.o.Interval.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("read the last evaluation of alerts: %w", err)
	}
	rows, err := s.o.Store.AlertsFiring(ctx, maxShown)
	if err != nil {
		return 0, fmt.Errorf("read alerts: %w", err)
	}
	tasks := counts{}
	if len(round.Tasks) > 0 {
		if err := json.Unmarshal(round.Tasks, &tasks); err != nil {
			return 0, fmt.Errorf("counts of the last evaluation of alerts: %w", err)
		}
	}
	firing := map[string]figure{}
	for _, r := range rows {
		f := firing[r.Kind]
		firing[r.Kind] = figure{f.alerts + 1, max(f.most, r.Value)}
	}
	s.figures.mu.Lock()
	defer s.figures.mu.Unlock()
	s.figures.evaluated, s.figures.tasks, s.figures.firing = round.EvaluatedAt.Time, tasks, firing
	return time.Duration(round.WaitMs * float64(time.Millisecond)), nil
}
