package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/internal/tenancy"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func fileOf(t *testing.T, text string) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, discard)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTenantsOfALine(t *testing.T) {
	t.Parallel()
	f := fileOf(t, "alice "+aliceToken+" roles=viewer tenants=shop,acme,shop\nbob "+bobToken+" roles=viewer tenants=*\n")
	for token, want := range map[string][]string{aliceToken: {"acme", "shop"}, bobToken: nil} {
		c, err := f.authenticate(t.Context(), as(token))
		if err != nil {
			t.Fatal(err)
		}
		if got := tenancy.Of(c.in(t.Context())); !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s is bound to %v, want %v", c.name, got, want)
		}
	}
	c, _ := f.authenticate(t.Context(), as(aliceToken))
	if ctx := c.in(t.Context()); !tenancy.May(ctx, "acme") || tenancy.May(ctx, "default") || tenancy.May(ctx, "") {
		t.Error("may")
	}
}

// request is one by a connection with a client certificate, which was checked or
// not.
func request(t *testing.T, c *x509.Certificate, checked bool) (ctx context.Context) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "https://localhost/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
	if checked {
		r.TLS.VerifiedChains = [][]*x509.Certificate{{c}}
	}
	Certificates(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = r.Context() })).ServeHTTP(httptest.NewRecorder(), r)
	return ctx
}

func TestPrincipalsOfCertificates(t *testing.T) {
	t.Parallel()
	f := fileOf(t, "alice "+aliceToken+" roles=viewer\n"+
		"shop cert:shop.example.com roles=producer tenants=shop\n"+
		"billing cert:spiffe://example.com/billing roles=producer tenants=*\n"+
		"ops cert:ops@example.com roles=operator\n"+
		"old cert:old.example.com roles=producer expires=2001-01-01T00:00:00Z\n")
	uri, _ := url.Parse("spiffe://example.com/billing")
	shop := &x509.Certificate{DNSNames: []string{"x.example.com", "shop.example.com"}}
	for _, tc := range []struct {
		what        string
		certificate *x509.Certificate
		unchecked   bool
		token       string
		want        string // the name; "": nobody
		refused     string
	}{
		{what: "a DNS name", certificate: shop, want: "shop"},
		{what: "a URI", certificate: &x509.Certificate{URIs: []*url.URL{uri}}, want: "billing"},
		{what: "an e-mail address", certificate: &x509.Certificate{EmailAddresses: []string{"ops@example.com"}}, want: "ops"},
		{what: "a common name", certificate: &x509.Certificate{Subject: pkix.Name{CommonName: "shop.example.com"}, DNSNames: []string{"pod-7"}}, want: "shop"},
		{what: "nobody's", certificate: &x509.Certificate{DNSNames: []string{"shop.example.com.evil.example", "SHOP.example.com"}}},
		{what: "one that was not checked", certificate: shop, unchecked: true},
		{what: "two people's", certificate: &x509.Certificate{DNSNames: []string{"shop.example.com"}, EmailAddresses: []string{"ops@example.com"}}, refused: "two principals"},
		{what: "an expired line", certificate: &x509.Certificate{DNSNames: []string{"old.example.com"}}, refused: "the certificate's line in the tokens file of old expired at 2001"},
		{what: "a token goes before", certificate: shop, token: aliceToken, want: "alice"},
		{what: "a wrong token is not made up for", certificate: shop, token: "not-a-known-token-0", refused: "not known"},
	} {
		h := http.Header{}
		if tc.token != "" {
			h = as(tc.token)
		}
		c, err := f.authenticate(request(t, tc.certificate, !tc.unchecked), h)
		if tc.refused != "" {
			if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%s: %v", tc.what, err)
			}
			continue
		}
		if err != nil || c.name != tc.want || (tc.want == "shop") != slices.Equal(c.tenants, []string{"shop"}) {
			t.Errorf("%s: %+v, %v", tc.what, c, err)
		}
	}
	// The name of a certificate is no token.
	if _, err := f.authenticate(t.Context(), as("cert:shop.example.com")); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a certificate's name as a token: %v", err)
	}
}

func TestConfine(t *testing.T) {
	t.Parallel()
	tasks := penstockv1.File_penstock_v1_tasks_proto.Services().ByName("TaskService").Methods()
	list, batch := tasks.ByName("ListTasks"), tasks.ByName("EnqueueBatch")
	one := tenancy.With(WithPrincipal(t.Context(), "shop", RoleProducer), []string{"shop"})
	two := tenancy.With(WithPrincipal(t.Context(), "both", RoleProducer), []string{"acme", "shop"})
	items := func(tenants ...string) *penstockv1.EnqueueBatchRequest {
		m := &penstockv1.EnqueueBatchRequest{}
		for _, tenant := range tenants {
			m.Tasks = append(m.Tasks, &penstockv1.EnqueueRequest{Type: "t", Tenant: tenant})
		}
		return m
	}
	filled := items("", "shop")
	if err := confine(one, batch, filled); err != nil || !proto.Equal(filled, items("shop", "shop")) {
		t.Errorf("%v, %v", filled, err)
	}
	for _, tc := range []struct {
		ctx  context.Context
		m    proto.Message
		code connect.Code
		want string
	}{
		{one, items("shop", "acme"), connect.CodePermissionDenied, `tasks[1].tenant is "acme": shop is bound to shop`},
		{two, items("shop", ""), connect.CodeInvalidArgument, "tasks[1].tenant is needed: both is bound to the tenants acme, shop; name one of them"},
		{two, items("shop", "acme"), 0, ""},
		{t.Context(), items("", "x"), 0, ""},
	} {
		err := confine(tc.ctx, batch, tc.m)
		if tc.code == 0 && err != nil || tc.code != 0 && (connect.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v: %v", tc.m, err)
		}
	}
	if err := confine(two, list, &penstockv1.ListTasksRequest{}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a list of two tenants: %v", err)
	}
}

func TestHideContent(t *testing.T) {
	t.Parallel()
	m := &penstockv1.ListEventsResponse{Events: []*penstockv1.Event{
		{Type: "task.progress", Data: []byte(`{"name": "Ada"}`)},
		{Type: "dlq.requeued", Data: []byte(`{"n": 1, "diff": [{"op": "replace"}]}`)},
		{Type: "task.retry_scheduled", Data: []byte(`{"delay_source": "policy"}`)},
	}}
	hideContent(m.ProtoReflect())
	if e := m.Events; e[0].Data != nil || !e[0].ContentHidden || string(e[1].Data) != `{"n":1}` || !e[1].ContentHidden || e[2].Data == nil || e[2].ContentHidden {
		t.Errorf("%v", m)
	}
	g := &penstockv1.GetTaskResponse{Task: &penstockv1.Task{TaskId: "a", Payload: []byte("1"), Result: []byte("2"), Progress: []byte("3")}}
	hideContent(g.ProtoReflect())
	if !proto.Equal(g, &penstockv1.GetTaskResponse{Task: &penstockv1.Task{TaskId: "a", ContentHidden: true}}) {
		t.Errorf("%v", g)
	}
	none := &penstockv1.GetTaskResponse{Task: &penstockv1.Task{TaskId: "a"}}
	hideContent(none.ProtoReflect())
	if none.Task.ContentHidden {
		t.Error("says that it hides what is not there")
	}
	for role, sees := range map[string]bool{
		RoleProducer: true, RoleWorker: true, RolePayloads: true, RoleAdmin: true, RoleViewer: false, RoleOperator: false, RoleApprover: false,
	} {
		if got := (caller{roles: []string{role}}).seesContent(); got != sees {
			t.Errorf("%s: %v", role, got)
		}
	}
}
