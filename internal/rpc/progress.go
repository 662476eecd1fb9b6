package rpc

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Progress that clients must make. A client that is slower holds a connection,
// and what it has sent so far, for as long as it likes.
const (
	// progressGrace is how long a body may take before its rate counts, and a write
	// before anything of it is taken.
	progressGrace = 20 * time.Second
	// minReadRate and minWriteRate are in bytes per second, on the average of a
	// body, and of each write: far below those of a slow line.
	minReadRate  = 4 << 10
	minWriteRate = 16 << 10
)

// insistOnProgress ends requests whose body, and responses whose reader, makes no
// progress. What a handler waits for otherwise is not bounded by it.
func insistOnProgress(next http.Handler, grace time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &deadlines{control: http.NewResponseController(w), grace: grace}
		if r.ProtoMajor == 1 { // those of the request before, on the same connection
			_ = d.control.SetWriteDeadline(time.Time{})
		}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &slowBody{ReadCloser: r.Body, deadlines: d, start: time.Now()}
		}
		next.ServeHTTP(&patientWriter{ResponseWriter: w, deadlines: d}, r)
		if late := d.finish(); r.ProtoMajor == 1 && !late { // the server reads the rest of the body now
			_ = d.control.SetReadDeadline(time.Now().Add(grace))
		}
		_ = d.control.SetWriteDeadline(time.Now().Add(grace)) // of what is in the server's buffer
	})
}

// deadlines end what takes too long in one exchange. They are timers of our own,
// which seldom fire: to set a deadline of an HTTP/2 stream means to hand over to
// another goroutine.
type deadlines struct {
	control          *http.ResponseController
	grace            time.Duration
	reading, writing deadline

	mu   sync.Mutex
	over bool // the server owns the exchange again: nothing may be set
	late bool // one has passed
}

// finish reports whether one has passed.
func (d *deadlines) finish() bool {
	d.reading.Stop()
	d.writing.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	return d.late
}

// deadline is one of them. It is not safe for concurrent use.
type deadline struct{ timer *time.Timer }

// Reset has set called with a moment that is past after the time allowed.
func (t *deadline) Reset(d *deadlines, allowed time.Duration, set func(time.Time) error) {
	if t.timer != nil {
		t.timer.Reset(allowed)
		return
	}
	t.timer = time.AfterFunc(allowed, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.over {
			d.late = true
			_ = set(time.Unix(1, 0))
		}
	})
}

// Stop stops it; it may be in vain.
func (t *deadline) Stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// slowBody gives each read the time that the rate allows for.
type slowBody struct {
	io.ReadCloser

	deadlines *deadlines
	start     time.Time
	read      int64
}

// Read implements io.Reader.
func (b *slowBody) Read(p []byte) (int, error) {
	d := b.deadlines
	allowed := d.grace + time.Duration(b.read)*(time.Second/minReadRate)
	d.reading.Reset(d, time.Until(b.start.Add(allowed)), d.control.SetReadDeadline)
	defer d.reading.Stop()
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}

// patientWriter gives each write the time that the rate allows for.
type patientWriter struct {
	http.ResponseWriter

	deadlines *deadlines
}

// Write implements http.ResponseWriter.
func (w *patientWriter) Write(p []byte) (int, error) {
	d := w.deadlines
	d.writing.Reset(d, d.grace+time.Duration(len(p))*(time.Second/minWriteRate), d.control.SetWriteDeadline)
	defer d.writing.Stop()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *patientWriter) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *patientWriter) FlushError() error {
	d := w.deadlines
	d.writing.Reset(d, d.grace, d.control.SetWriteDeadline)
	defer d.writing.Stop()
	return d.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
