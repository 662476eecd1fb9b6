// Package demo runs the main job once, on real servers and real work, and
// checks every number it prints.
package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
)

// Options are the settings of Run.
type Options struct {
	Orchestrator config.Orchestrator
	Worker       config.Worker
	// Tasks is how many tasks of each of the three types to run, at least 1.
	Tasks int
	// Out gets the report; Progress gets the progress bar, and Terminal tells
	// whether it is one.
	Out, Progress io.Writer
	Terminal      bool
	// Command runs Penstock's programs for the failure tour.
	Command Command
	Log     *slog.Logger
}

// The demo's task types.
var (
	hashFile = task.Define[fileRef]("demo.hash")
	post     = task.Define[greeting]("demo.post")
	echo     = task.Define[greeting]("demo.echo")
)

type fileRef struct {
	Path string `json:"path"`
}

type greeting struct {
	N int `json:"n"`
}

// hashScript reads {"path":"…"} and prints the file's SHA-256 as JSON.
const hashScript = `path=$(sed -n 's/.*"path":"\([^"]*\)".*/\1/p') && sum=$(sha256sum -- "$path") && printf '{"sha256":"%s"}' "${sum%% *}"`

// deadline bounds the whole demo.
const deadline = 3 * time.Minute

// run is one demo under way.
type run struct {
	o        Options
	client   *client.Client
	system   System
	receiver *receiver
	files    map[string]string // path → SHA-256
	paths    []string
}

// Run starts everything, runs the tasks, prints the report and returns an
// error that says which number is wrong, if one is.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	dir, err := os.MkdirTemp("", "penstock-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for sample files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &run{o: o}
	if err := r.makeFiles(dir); err != nil {
		return err
	}
	if r.receiver, err = startReceiver(); err != nil {
		return err
	}
	defer r.receiver.close()

	r.configure()
	began := time.Now()
	dev, err := app.StartDev(ctx, app.DevOptions{
		Orchestrator: r.o.Orchestrator, Worker: r.o.Worker, Principals: people, Log: o.Log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r.printf("Postgres, Redis, one orchestrator and one worker are up after %s.\n", time.Since(began).Round(10*time.Millisecond))

	dctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer cancel() // nothing can come of the tour any more
		done <- dev.Run(dctx)
	}()
	defer func() {
		stop()
		err = errors.Join(<-done, err)
	}()
	r.system = System{
		Server: dev.Orchestrator.URL(), PostgresURL: dev.PostgresURL, RedisURL: dev.RedisURL, TokenFiles: map[string]string{},
	}
	for i, file := range dev.TokenFiles {
		name, _, _ := strings.Cut(people[i], " ")
		r.system.TokenFiles[name] = file
	}
	if r.client, err = client.New(r.system.Server); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.client.Close()) }()
	return r.tour(ctx)
}

func (r *run) printf(format string, a ...any) { _, _ = fmt.Fprintf(r.o.Out, format, a...) }

// configure declares the handlers.
func (r *run) configure() {
	r.o.Orchestrator.Server.Listen, r.o.Orchestrator.Server.TLS = "127.0.0.1:0", config.ServerTLS{}
	r.o.Orchestrator.Auth = config.Auth{}
	r.o.Orchestrator.Recovery.VisibilityTimeout, r.o.Worker.VisibilityTimeout = visibility, visibility
	r.o.Worker.HTTP = config.HTTPClient{Allow: []string{"127.0.0.0/8"}, AllowPrivate: true}
	r.o.Worker.Handlers = map[string]config.Handler{
		hashFile.Name(): {Kind: "exec", Command: []string{"sh", "-c", hashScript}},
		post.Name():     {Kind: "http", URL: r.receiver.url},
		echo.Name():     {Kind: "echo"},
		send.Name():     {Kind: "inject"},
		refund.Name():   {Kind: "echo"},
	}
}

const sampleFiles = 40

// makeFiles writes sample files and remembers their hashes.
func (r *run) makeFiles(dir string) error {
	r.files = map[string]string{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range sampleFiles {
		b := make([]byte, 1000+rnd.IntN(60_000))
		for j := range b {
			b[j] = byte(rnd.IntN(256))
		}
		path := filepath.Join(dir, fmt.Sprintf("sample-%02d.bin", i))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return fmt.Errorf("write a sample file: %w", err)
		}
		sum := sha256.Sum256(b)
		r.files[path], r.paths = hex.EncodeToString(sum[:]), append(r.paths, path)
	}
	return nil
}

// receiver is the HTTP service that demo.post calls.
type receiver struct {
	url    string
	server *http.Server
	mu     sync.Mutex
	byKey  map[string]int // Idempotency-Key → requests
}

func startReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the demo's HTTP receiver: %w", err)
	}
	rc := &receiver{url: "http://" + l.Addr().String() + "/hook", byKey: map[string]int{}}
	rc.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var g greeting
		if err := json.NewDecoder(io.LimitReader(req.Body, 1<<20)).Decode(&g); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rc.mu.Lock()
		rc.byKey[req.Header.Get("Idempotency-Key")]++
		rc.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"received":%d}`, g.N)
	})}
	go func() { _ = rc.server.Serve(l) }()
	return rc, nil
}

func (rc *receiver) close() { _ = rc.server.Close() }

// counts returns how many keys and requests were received.
func (rc *receiver) counts() (keys, requests int) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, n := range rc.byKey {
		requests += n
	}
	return len(rc.byKey), requests
}
