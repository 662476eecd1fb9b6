package acceptance_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/acceptance"
	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// options are those of an acceptance of a running system.
func options(t *testing.T, s testkit.Stores, o *testkit.Orchestrator, cfg config.Orchestrator) acceptance.Options {
	t.Helper()
	c := testkit.Client(t, o.URL)
	testkit.Eventually(t, "the orchestrator answers", func() (bool, string) {
		_, err := c.RPC().GetDeployment(t.Context(), connect.NewRequest(&penstockv1.GetDeploymentRequest{}))
		return err == nil, fmt.Sprint(err)
	})
	return acceptance.Options{
		Client: c, REST: acceptance.NewREST(http.DefaultClient, o.URL, ""), Server: o.URL,
		RedisURL: s.RedisURL, PostgresURL: s.PostgresURL, Role: "penstock_app", VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Steps: 20, LineTimeout: 2 * time.Minute, Timeout: 4 * time.Minute, Log: testkit.Log(t), Report: func(l acceptance.Line) { t.Logf("%-18s %s %v %v", l.Name, l.Verdict, l.Reasons, l.Notes) },
	}
}

// people lets callers without a token do everything, and returns what makes a
// client of carol, who may approve, and of alice, who may do all that needs no
// admin; and alice's token.
func people(t *testing.T, cfg *config.Orchestrator) (carol, alice func(url string) *client.Client, token string) {
	t.Helper()
	made, err := auth.MakeFiles(t.TempDir(), "carol roles=approver", "alice roles="+strings.Join(withoutAdmin, ","))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Auth.TokensFile, cfg.Auth.AnonymousRoles, cfg.Guard.AllowAnonymous = made.TokensFile, auth.AllRoles(), true
	as := func(file string) (func(url string) *client.Client, string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		token := strings.TrimSpace(string(b))
		return func(url string) *client.Client {
			c, err := client.NewWith(url, client.Options{Token: token})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}, token
	}
	carol, _ = as(made.TokenFiles[0])
	alice, token = as(made.TokenFiles[1])
	return carol, alice, token
}

// withoutAdmin are the roles that an acceptance takes, but for the admin's.
var withoutAdmin = []string{auth.RoleProducer, auth.RoleWorker, auth.RoleOperator, auth.RoleViewer}

// A system that works passes every line, in any configuration of its times, and
// nothing is left behind.
func TestAcceptancePasses(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout, cfg.Recovery.ReclaimInterval = 3*time.Second, 500*time.Millisecond
	carol, _, _ := people(t, &cfg)
	o := testkit.StartOrchestrator(t, cfg)
	opts := options(t, s, o, cfg)
	opts.Approver = carol(o.URL)
	rep, err := acceptance.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Lines) != len(acceptance.Names()) || rep.Left != "" {
		t.Errorf("%d lines of %d, left behind: %q", len(rep.Lines), len(acceptance.Names()), rep.Left)
	}
	for i, l := range rep.Lines {
		// Figures depend on the machine; that they were measured does not.
		measures := strings.HasPrefix(l.Name, "ASTER-no-retry") || strings.HasPrefix(l.Name, "ASTER-retry")
		if l.Name != acceptance.Names()[i] || !measures && l.Verdict != acceptance.Pass || len(l.Notes) == 0 {
			t.Errorf("%s: %s %v %v", l.Name, l.Verdict, l.Reasons, l.Notes)
		}
	}
	keys, err := s.Redis(t).Keys(t.Context(), protocol.StreamTask+":*").Result()
	if err != nil || len(keys) > 0 {
		t.Errorf("streams left: %v, error %v", keys, err)
	}
	var live int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE finished_at IS NULL").Scan(&live); err != nil || live > 0 {
		t.Errorf("%d tasks left, error %v", live, err)
	}
	testkit.VerifyLog(t, s)
}
