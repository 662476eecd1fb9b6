package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/rpc"
)

// callers are the principals of the test, one for each role, and two who have
// none: one that is known and one that is not.
var callers = append(auth.AllRoles(), "nobody", "")

// guarded is an orchestrator that knows the callers.
type guarded struct {
	url  string
	http *http.Client
}

// newGuarded runs an orchestrator with a tokens file.
func newGuarded(t *testing.T, edit func(*config.Orchestrator)) *guarded {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	text := "nobody " + tokenOf("nobody") + "\n"
	for _, role := range auth.AllRoles() {
		text += role + "-person " + tokenOf(role) + " roles=" + role + "\n"
	}
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(migratedDatabase(t), devtest.Redis(t))
	cfg.Auth.TokensFile = tokens
	if edit != nil {
		edit(&cfg)
	}
	return &guarded{runOrchestrator(t, cfg), newHTTPClient(t, nil)}
}

func tokenOf(caller string) string { return caller + "-0123456789abcdef" }

// ask makes a call as one of the callers and returns the status and the body, of
// a stream only the beginning.
func (g *guarded) ask(t *testing.T, caller, method, path, contentType string, body []byte) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, g.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if caller != "" {
		req.Header.Set("Authorization", "Bearer "+tokenOf(caller))
	}
	resp, err := g.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	begin := make([]byte, 4096)
	n, err := io.ReadAtLeast(resp.Body, begin, 1)
	if err == nil && !strings.Contains(resp.Header.Get("Content-Type"), "stream") && !strings.Contains(resp.Header.Get("Content-Type"), "connect+") {
		rest, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(begin[:n]) + string(rest)
	}
	return resp.StatusCode, string(begin[:n])
}

// judge compares an answer with what the caller may. Refusals of roles read like
// no others.
func judge(t *testing.T, what, caller, allowed string, status int, body string) {
	t.Helper()
	refused := strings.Contains(body, "takes one of the roles")
	if slices.Contains(strings.Fields(allowed+" "+auth.RoleAdmin), caller) {
		if refused || status == http.StatusUnauthorized {
			t.Errorf("%s by %s is refused: %d %s", what, caller, status, body)
		}
		if strings.Contains(body, "declares no roles") {
			t.Errorf("%s: %s", what, body)
		}
		return
	}
	want, code := http.StatusForbidden, "permission_denied"
	if caller == "" {
		want, code = http.StatusUnauthorized, "unauthenticated"
	}
	if !refused || status != want && !strings.Contains(body, code) { // a stream has its error at its end
		t.Errorf("%s by %q is not refused: %d %s", what, caller, status, body)
	}
	names := strings.Fields(allowed)
	slices.Sort(names)
	if list := strings.Join(slices.Compact(append(names, "admin")), ", "); !strings.Contains(body, list) && len(names) > 0 {
		t.Errorf("%s by %q: the refusal does not name %s: %s", what, caller, list, body)
	}
}

// methods yields every RPC of this repository, whoever serves it.
func methods(t *testing.T) (all []protoreflect.MethodDescriptor) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("penstock.v1", func(fd protoreflect.FileDescriptor) bool {
		for i := range fd.Services().Len() {
			ms := fd.Services().Get(i).Methods()
			for j := range ms.Len() {
				all = append(all, ms.Get(j))
			}
		}
		return true
	})
	return all
}

func rowOf(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().Name()) + "/" + string(m.Name())
}

func procedureOf(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// TestEveryRPCHasARow, and says in its .proto what the row says.
func TestEveryRPCHasARow(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range methods(t) {
		row := rowOf(m)
		seen[row] = true
		want, ok := may[row]
		if !ok {
			t.Errorf("%s has no row: who may call it?", row)
			continue
		}
		roles := strings.Fields(want)
		if len(roles) == 0 {
			roles = []string{auth.RoleAdmin}
		}
		slices.Sort(roles)
		if got := auth.Declared(m); !slices.Equal(got, roles) {
			t.Errorf("%s declares %v, want %v", row, got, roles)
		}
	}
	for row := range may {
		if !seen[row] {
			t.Errorf("there is no RPC %s", row)
		}
	}
}

// TestEveryEndpointByEveryRole calls each RPC by its procedure and each of its
// REST routes, and every path beside them, as everybody.
func TestEveryEndpointByEveryRole(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, func(c *config.Orchestrator) { c.InternalJobs.Enabled = true })
	g.ask(t, auth.RoleProducer, http.MethodPost, "/api/v1/tasks", "application/json", []byte(`{"type":"t","payload":{}}`)) // something to watch
	for _, m := range methods(t) {
		t.Run(rowOf(m), func(t *testing.T) {
			t.Parallel()
			allowed := may[rowOf(m)]
			for _, caller := range callers {
				g.callRPC(t, m, caller, allowed)
				for method, path := range routesOf(t, m) {
					status, body := g.ask(t, caller, method, path, jsonFor(method), bodyFor(method))
					judge(t, method+" "+path, caller, allowed, status, body)
				}
			}
		})
	}
	for what, allowed := range beside {
		method, path, _ := strings.Cut(what, " ")
		for _, caller := range callers {
			status, body := g.ask(t, caller, method, path, jsonFor(method), bodyFor(method))
			judge(t, what, caller, allowed, status, body)
		}
	}
	for _, what := range open {
		method, path, _ := strings.Cut(what, " ")
		for _, caller := range append(callers, "a stranger") { // whose token is wrong
			if status, body := g.ask(t, caller, method, path, jsonFor(method), bodyFor(method)); status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound {
				t.Errorf("%s by %q: %d %s", what, caller, status, body)
			}
		}
	}
}

// TestNoPathIsForgotten: an orchestrator serves nothing but what
// TestEveryEndpointByEveryRole asks for, and all of that.
func TestNoPathIsForgotten(t *testing.T) {
	t.Parallel()
	asked := slices.Concat(slices.Collect(maps.Keys(beside)), open)
	for _, m := range methods(t) {
		asked = append(asked, "POST "+procedureOf(m))
		for method, path := range routesOf(t, m) {
			asked = append(asked, method+" "+path)
		}
	}
	r := everyRouter(t)
	var found []string
	for _, what := range asked {
		_, path, _ := strings.Cut(what, " ")
		path, _, _ = strings.Cut(path, "?")
		if pattern := r.Pattern(path); pattern != "" {
			found = append(found, pattern)
		} else {
			t.Errorf("%s: nothing serves it", what)
		}
	}
	for _, pattern := range r.Patterns() {
		if !slices.Contains(found, pattern) {
			t.Errorf("%s is served, and no test asks for it as everybody: add a row to beside or open", pattern)
		}
	}
}

// everyRouter returns the router of an orchestrator that has everything on that
// can be enabled.
func everyRouter(t *testing.T) *rpc.Router {
	t.Helper()
	cfg := testConfig(migratedDatabase(t), devtest.Redis(t))
	for sections, i := reflect.ValueOf(&cfg).Elem(), 0; i < sections.NumField(); i++ {
		if section := sections.Field(i); section.Kind() == reflect.Struct {
			if on := section.FieldByName("Enabled"); on.IsValid() && on.Kind() == reflect.Bool {
				on.SetBool(true)
			}
		}
	}
	o, err := NewOrchestrator(t.Context(), cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	select {
	case <-o.serving:
	case err := <-done:
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return (*o.gate.handler.Load()).(*rpc.Router)
}

// callRPC calls a procedure in the Connect protocol.
func (g *guarded) callRPC(t *testing.T, m protoreflect.MethodDescriptor, caller, allowed string) {
	t.Helper()
	path := procedureOf(m)
	contentType, body := "application/json", []byte("{}")
	if m.IsStreamingServer() {
		contentType, body = "application/connect+json", []byte(`{"position":"earliest"}`)
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...) //nolint:gosec // short
	}
	status, answer := g.ask(t, caller, http.MethodPost, path, contentType, body)
	judge(t, path, caller, allowed, status, answer)
	if strings.Contains(answer, "problem") || status == http.StatusNotImplemented {
		t.Errorf("%s is not served: %d %s", path, status, answer)
	}
}

var variable = regexp.MustCompile(`\{[^}]*\}`)

// routesOf lists the REST routes of an RPC, path by method. Each has one at
// least, but for the stream, which is among beside.
func routesOf(t *testing.T, m protoreflect.MethodDescriptor) map[string]string {
	t.Helper()
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		if !m.IsStreamingServer() {
			t.Errorf("%s has no REST route", m.FullName())
		}
		return nil
	}
	routes := map[string]string{}
	for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		for method, path := range map[string]string{"GET": r.GetGet(), "POST": r.GetPost(), "PUT": r.GetPut(), "PATCH": r.GetPatch(), "DELETE": r.GetDelete()} {
			if path == "" {
				continue
			}
			if routes[method] != "" {
				t.Fatalf("%s has two routes with %s: this test knows one", m.FullName(), method)
			}
			routes[method] = variable.ReplaceAllString(path, "x")
		}
	}
	return routes
}

func jsonFor(method string) string {
	if method == http.MethodGet || method == http.MethodDelete {
		return ""
	}
	return "application/json"
}

func bodyFor(method string) []byte {
	if jsonFor(method) == "" {
		return nil
	}
	return []byte("{}")
}

// TestInternalJobsAreOff: where they are not enabled, nobody finds them.
func TestInternalJobsAreOff(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, nil)
	for _, caller := range callers {
		if status, body := g.ask(t, caller, http.MethodPost, "/api/v1/internal/jobs", "application/json", []byte("{}")); status != http.StatusNotFound {
			t.Errorf("by %q: %d %s", caller, status, body)
		}
	}
}

// TestAnonymousRoles: callers without a token have what the configuration gives
// them, and a person is needed all the same where one is.
func TestAnonymousRoles(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, func(c *config.Orchestrator) { c.Auth.AnonymousRoles = []string{"viewer", "operator"} })
	for path, want := range map[string]int{
		"GET /api/v1/tasks":                http.StatusOK,
		"GET /api/v1/workers":              http.StatusOK,
		"POST /api/v1/workers/w/heartbeat": http.StatusUnauthorized,
	} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := g.ask(t, "", method, path, jsonFor(method), bodyFor(method)); status != want {
			t.Errorf("%s %s: %d %s", method, path, status, body)
		}
	}
	id := "01890a5d-ac96-774b-bcce-b302099a8057"
	status, body := g.ask(t, "", http.MethodPost, "/penstock.v1.DeadLetterService/ConfirmDiscard", "application/json", []byte(`{"batchId":"`+id+`"}`))
	if status != http.StatusUnauthorized || strings.Contains(body, "takes one of the roles") {
		t.Errorf("discarding as nobody: %d %s", status, body)
	}
}
