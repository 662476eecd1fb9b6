package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestDebugServesProfiles: to this machine, as long as it is open.
func TestDebugServesProfiles(t *testing.T) {
	t.Parallel()
	d, err := openDebug("127.0.0.1:0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	url, c := "http://"+d.listener.Addr().String()+"/debug/pprof/", newHTTPClient(t, nil)
	ask := func(path, host string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, body := ask("profile?seconds=1", "127.0.0.1:6060"); code != http.StatusOK || !strings.HasPrefix(body, "\x1f\x8b") {
		t.Errorf("a profile: %d, %.80q", code, body)
	}
	if code, body := ask("goroutine?debug=1", "localhost:6060"); code != http.StatusOK || !strings.Contains(body, "openDebug") {
		t.Errorf("goroutines: %d, %.80q", code, body)
	}
	if code, _ := ask("", "rebound.example.com"); code != http.StatusForbidden {
		t.Errorf("under a name that a browser was made to believe: %d", code)
	}
	d.close()
	if res, err := c.Get(url); err == nil {
		_ = res.Body.Close()
		t.Error("it answers after it was closed")
	}
}

// TestDebugRefusesOthers: what the configuration check can't know is refused when
// the port is open; none is nothing.
func TestDebugRefusesOthers(t *testing.T) {
	t.Parallel()
	if d, err := openDebug("0.0.0.0:0", quiet); err == nil || !strings.Contains(err.Error(), "debug.listen: other machines can reach") {
		t.Errorf("got %v, %v", d, err)
	}
	d, err := openDebug("", quiet)
	if d != nil || err != nil {
		t.Errorf("got %v, %v", d, err)
	}
	d.close()
}
