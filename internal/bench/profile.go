package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed sql/statements.sql
var statementsSQL string

// profile is what is written of one section: into a directory of its name go the
// CPU profiles of the orchestrators and of this process, which is the client and
// the worker, and the statements that Postgres ran.
type profile struct {
	s    *system
	dir  string
	own  *os.File
	cpus []*cpuProfile // one of each orchestrator
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// startProfile begins to profile a section.
func (s *system) startProfile(ctx context.Context, section string) (_ *profile, err error) {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(section), "-"), "-")
	p := &profile{s: s, dir: filepath.Join(s.b.profile, s.b.part.name, name)}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := s.db.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
		return nil, fmt.Errorf("the statements that Postgres runs (its extension pg_stat_statements must be installed): %w", err)
	}
	if _, err := s.db.Exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
		return nil, err
	}
	for _, o := range s.orchestrators {
		c, err := startCPUProfile(ctx, o.debug)
		if err != nil {
			return nil, err
		}
		p.cpus = append(p.cpus, c)
	}
	if p.own, err = os.Create(filepath.Join(p.dir, "bench.pprof")); err != nil {
		return nil, err
	}
	return p, pprof.StartCPUProfile(p.own)
}

// stop writes the files.
func (p *profile) stop(ctx context.Context) error {
	pprof.StopCPUProfile()
	errs := []error{p.own.Close()}
	for i, c := range p.cpus {
		name := "orchestrator.pprof"
		if i > 0 {
			name = fmt.Sprintf("orchestrator-%d.pprof", i+1)
		}
		b, err := c.stop()
		if err == nil {
			err = os.WriteFile(filepath.Join(p.dir, name), b, 0o644)
		}
		errs = append(errs, err)
	}
	text, err := p.statements(ctx)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, "statements.txt"), text, 0o644)
	}
	fmt.Fprintf(os.Stderr, "profiles are in %s: go tool pprof -top %s\n", p.dir, filepath.Join(p.dir, "orchestrator.pprof"))
	return errors.Join(append(errs, err)...)
}

// statements is the table of what Postgres ran.
func (p *profile) statements(ctx context.Context) ([]byte, error) {
	rows, err := p.s.db.Query(ctx, statementsSQL)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out bytes.Buffer
	tw := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, f := range rows.FieldDescriptions() {
		_, _ = fmt.Fprintf(tw, "%s\t", f.Name)
	}
	for rows.Next() {
		v, err := rows.Values()
		if err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintln(tw)
		for _, x := range v[:len(v)-1] {
			_, _ = fmt.Fprintf(tw, "%v\t", x)
		}
		_, _ = fmt.Fprint(tw, v[len(v)-1]) // the query: nothing is aligned with it
	}
	_, _ = fmt.Fprintln(tw)
	err = errors.Join(rows.Err(), tw.Flush())
	return out.Bytes(), err
}

// cpuProfile is a profile that is being taken of a process, by its debug.listen.
type cpuProfile struct{ conn *net.TCPConn }

// profileLimit is how long a profile may take.
const profileLimit = time.Hour

// startCPUProfile begins one that ends when it is told to. /debug/pprof/profile
// takes as long as it was asked for, or until its caller sends nothing more: then
// it answers with what it has. So that is what ends it, and the half of the
// connection that the answer comes by stays open.
func startCPUProfile(ctx context.Context, addr string) (*cpuProfile, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("profile the orchestrator: %w", err)
	}
	conn := c.(*net.TCPConn)
	const ask = "GET /debug/pprof/profile?seconds=%.0f HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
	if _, err := fmt.Fprintf(conn, ask, profileLimit.Seconds(), addr); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &cpuProfile{conn: conn}, nil
}

func (c *cpuProfile) stop() (_ []byte, err error) {
	defer func() { err = errors.Join(err, c.conn.Close()) }()
	if err := errors.Join(c.conn.CloseWrite(), c.conn.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c.conn), nil)
	if err != nil {
		return nil, fmt.Errorf("profile the orchestrator: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("profile the orchestrator: %s: %s", res.Status, b)
	}
	return b, err
}
