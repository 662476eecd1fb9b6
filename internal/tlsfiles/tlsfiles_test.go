package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/tlsfiles/tlstest"
)

// serve answers with the name in the client's certificate until the test ends.
func serve(t *testing.T, files Server) (url string, k *Keeper, logs *bytes.Buffer) {
	t.Helper()
	logs = &bytes.Buffer{}
	k, err := Open(files, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		TLSConfig: k.Config(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn), ReadHeaderTimeout: 1e9,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := "nobody"
			if c := r.TLS.PeerCertificates; len(c) > 0 {
				name = c[0].Subject.CommonName
			}
			_, _ = io.WriteString(w, r.Proto+" "+name)
		}),
	}
	go func() { _ = s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	return "https://" + l.Addr().String(), k, logs
}

// dial makes a call over a new connection: what was answered, the server's
// certificate, and the error.
func dial(t *testing.T, url string, cfg *tls.Config) (body, server string, err error) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), resp.TLS.PeerCertificates[0].Subject.CommonName, err
}

func config(t *testing.T, c Client) *tls.Config {
	t.Helper()
	cfg, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestHandshakes(t *testing.T) {
	t.Parallel()
	ours, others := tlstest.NewCA(t, "ours"), tlstest.NewCA(t, "others")
	cert, key := ours.Issue(t, "server")
	goodCert, goodKey := ours.Issue(t, "alice")
	badCert, badKey := others.Issue(t, "mallory")
	plain, _, _ := serve(t, Server{CertFile: cert, KeyFile: key})
	mutual, _, _ := serve(t, Server{CertFile: cert, KeyFile: key, ClientCAFile: ours.File})
	for _, tc := range []struct {
		what, url string
		c         Client
		want      string // "": it fails
	}{
		{"known authority", plain, Client{CAFile: ours.File}, "HTTP/2.0 nobody"},
		{"no authority but the system's", plain, Client{}, ""},
		{"another authority", plain, Client{CAFile: others.File}, ""},
		{"a certificate that nobody asked for", plain, Client{CAFile: ours.File, CertFile: goodCert, KeyFile: goodKey}, "HTTP/2.0 nobody"},
		{"mutual, good", mutual, Client{CAFile: ours.File, CertFile: goodCert, KeyFile: goodKey}, "HTTP/2.0 alice"},
		{"mutual, no certificate", mutual, Client{CAFile: ours.File}, ""},
		{"mutual, of another authority", mutual, Client{CAFile: ours.File, CertFile: badCert, KeyFile: badKey}, ""},
		{"mutual, the server is unknown", mutual, Client{CAFile: others.File, CertFile: goodCert, KeyFile: goodKey}, ""},
	} {
		got, _, err := dial(t, tc.url, config(t, tc.c))
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v", tc.what, got, err)
		}
	}
	old := config(t, Client{CAFile: ours.File})
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, _, err := dial(t, plain, old); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
	old.MaxVersion = tls.VersionTLS12
	if _, _, err := dial(t, plain, old); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
}

// TestRotation replaces the files of a server and a client while both run.
func TestRotation(t *testing.T) {
	t.Parallel()
	first, second := tlstest.NewCA(t, "first"), tlstest.NewCA(t, "second")
	cert, key := first.Issue(t, "one")
	clientCert, clientKey := first.Issue(t, "alice")
	cas := filepath.Join(t.TempDir(), "cas")
	copyTo(t, cas, first.File)
	url, k, logs := serve(t, Server{CertFile: cert, KeyFile: key, ClientCAFile: cas})
	c := config(t, Client{CAFile: first.File, CertFile: clientCert, KeyFile: clientKey})
	expect := func(what, server, client string) {
		t.Helper()
		body, name, err := dial(t, url, c)
		if client == "" && err == nil || client != "" && (err != nil || name != server || !strings.HasSuffix(body, client)) {
			t.Errorf("%s: %q from %q, %v", what, body, name, err)
		}
	}
	look := func() { k.look(); k.look() }
	expect("at first", "one", "alice")

	first.IssueTo(t, "two", cert, key)
	k.look()
	expect("at first sight", "one", "alice")
	k.look()
	expect("a new certificate", "two", "alice")

	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	look()
	expect("a key that is none", "two", "alice")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	look()
	expect("no key", "two", "alice")
	if n := strings.Count(logs.String(), "can't be used"); n != 2 {
		t.Errorf("%d warnings in %s", n, logs)
	}
	first.IssueTo(t, "three", cert, key)
	look()
	expect("all well again", "three", "alice")

	second.IssueTo(t, "bob", clientCert, clientKey) // the client shows it from now on
	expect("a client of an authority that is not trusted yet", "", "")
	copyTo(t, cas, first.File, second.File)
	look()
	expect("trusted now", "three", "bob")
}

func copyTo(t *testing.T, to string, from ...string) {
	t.Helper()
	var all []byte
	for _, f := range from {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if err := os.WriteFile(to, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "ca")
	cert, key := ca.Issue(t, "x")
	_, otherKey := ca.Issue(t, "y")
	dir := t.TempDir()
	none, empty := filepath.Join(dir, "none"), filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		s    Server
		want string
	}{
		{Server{CertFile: cert}, "two files"},
		{Server{CertFile: none, KeyFile: key}, none},
		{Server{CertFile: cert, KeyFile: otherKey}, otherKey},
		{Server{CertFile: empty, KeyFile: key}, empty},
		{Server{CertFile: cert, KeyFile: key, ClientCAFile: empty}, "no certificate in PEM"},
		{Server{CertFile: cert, KeyFile: key, ClientCAFile: none}, none},
	} {
		if _, err := Open(tc.s, slog.Default()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.s, err, tc.want)
		}
	}
	for _, tc := range []struct {
		c    Client
		want string
	}{
		{Client{CertFile: cert}, "two files"}, {Client{KeyFile: key}, "two files"}, {Client{CAFile: none}, none}, {Client{CAFile: empty}, "no certificate in PEM"},
		{Client{CertFile: cert, KeyFile: otherKey}, otherKey}, {Client{CertFile: none, KeyFile: key}, none},
	} {
		if _, err := tc.c.Config(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.c, err, tc.want)
		}
	}
	if cfg, err := (Client{}).Config(); cfg != nil || err != nil {
		t.Errorf("no files: %v, %v", cfg, err)
	}
}
