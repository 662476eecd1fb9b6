package handlers

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/task"
)

// httpEffect is the name of an http handler's only effect.
const httpEffect = "http"

// ledger reads how the declaration wants its calls kept.
func (h *httpHandler) ledger(d *declaration) {
	switch d.Effects {
	case "", "auto", "off":
		h.effects = d.Effects != "off"
	default:
		d.fail("effects", "%q is not auto or off", d.Effects)
	}
	switch d.InDoubt {
	case "", "stop", "run_again":
		h.runAgain = d.InDoubt == "run_again"
	default:
		d.fail("in_doubt", "%q is not stop or run_again", d.InDoubt)
	}
}

// once makes the call as a side effect that the ledger keeps: one that was
// answered with 2xx is not made again, for whatever reason the task runs again.
// What the receiver answered otherwise, or what was never sent, has not happened;
// what was sent and has no answer of the receiver's own is in doubt.
func (h *httpHandler) once(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	return once.Do(ctx, httpEffect, func(ctx context.Context) (json.RawMessage, error) {
		c := &call{}
		res, err := h.post(ctx, r, c)
		switch {
		case err == nil:
			return res, nil
		case c.status/100 == 2: // only its body can't be had
			return nil, once.WithoutResult(task.Permanent(err))
		case c.refused(), c.status == 0 && !c.sent.Load():
			return nil, once.NotDone(err)
		}
		return nil, err
	}, once.Options{RunAgain: h.runAgain, KeepLarge: true})
}

// call is how far one came.
type call struct {
	sent   atomic.Bool // a part of it may be with the receiver
	status int         // of the response; 0: none
	// retryAfter: the response has that header.
	retryAfter bool
}

// refused reports whether the receiver itself has said that it did not do it. What
// a proxy says is no such word: it may have passed the request on. Of 500 the
// receiver is taken at its word that it failed.
func (c *call) refused() bool {
	switch s := c.status; {
	case s == http.StatusRequestTimeout, s == 499, s == http.StatusBadGateway, s == http.StatusGatewayTimeout, s >= 520 && s <= 527:
		return false
	case s == http.StatusServiceUnavailable: // a server that says when to come back has turned it away
		return c.retryAfter
	case s == http.StatusTemporaryRedirect, s == http.StatusPermanentRedirect: // to be sent elsewhere; other redirects may follow the deed
		return true
	default:
		return s >= 400
	}
}

// watch returns a context by which a request tells whether it was sent. A new
// attempt of the transport's begins anew: it makes one only if the last one did not
// arrive.
func (c *call) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { c.sent.Store(false) },
		WroteHeaders: func() { c.sent.Store(true) },
	})
}

// hideKey keeps net/http from sending the request again by itself where the first
// may have arrived: it takes a request with such a header for one that may be
// repeated, but looks for the canonical spelling only.
func (c *call) hideKey(h http.Header) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if v, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = v
		}
	}
}
