package reclaim

import "time"

// ReportAfter sets for how long Run must fail until its pulse shows it.
func (r *Reclaimer) ReportAfter(d time.Duration) { r.failing = d }
