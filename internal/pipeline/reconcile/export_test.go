package reconcile

// After has fn called by r's passes after each of their readings: "candidates",
// "undelivered" and "pending" of each queue, "outcomes"; and by a sweep after
// "entries", before it reads whose they are.
func After(r *Reconciler, fn func(reading string)) { r.after = fn }
