package app

import (
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/alert"
)

// Alerts are the settings of the alert rules that cfg asks for; the caller adds
// the store, the log and the metrics.
func Alerts(cfg config.Alerts) alert.Options {
	return alert.Options{
		Interval: cfg.Interval, RetryingPercent: cfg.RetryingPercent, RetryingMinimum: cfg.RetryingMinimum,
		DLQGrowth: cfg.DLQGrowth, InvalidInARow: cfg.InvalidInARow, Window: cfg.Window,
	}
}
