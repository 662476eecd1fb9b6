package alert

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are open to whoever reaches the port: they tell how many tenants an alert
// is about, not which.
func TestFiguresNameNoTenant(t *testing.T) {
	t.Parallel()
	f := newFigures()
	f.evaluated, f.tasks = time.UnixMilli(1), counts{}
	f.firing = map[string]figure{"dlq_growth": {alerts: 2, most: 150}}
	want := `
# HELP penstock_alert_firing Alerts of a kind that are firing: of dlq_growth one for each tenant; the same at every orchestrator.
# TYPE penstock_alert_firing gauge
penstock_alert_firing{kind="dlq_growth"} 2
penstock_alert_firing{kind="invalid_transitions"} 0
penstock_alert_firing{kind="redis_lost"} 0
penstock_alert_firing{kind="retrying_share"} 0
# HELP penstock_alert_value What was last measured for an alert that is firing, the most of any tenant: percent, dead letters, or refused outcomes; 0 for redis_lost.
# TYPE penstock_alert_value gauge
penstock_alert_value{kind="dlq_growth"} 150
`
	registry := prometheus.NewRegistry()
	registry.MustRegister(f)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains("\n"+w.Body.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", w.Body, want)
	}
}
