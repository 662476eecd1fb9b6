package rpc

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"connectrpc.com/grpchealth"

	"github.com/penstock-dev/penstock/protocol"
)

// browsers keeps out what a page of another site has its reader's browser send,
// which may reach a port that the site cannot: across origins
// (http.CrossOriginProtection), and by a name of the site's own that was made to
// lead here (DNS rebinding).
type browsers struct {
	origins *http.CrossOriginProtection
	ambient func() bool
	allowed []string // names, in lower case
}

func newBrowsers(o Options) *browsers {
	b := &browsers{origins: http.NewCrossOriginProtection(), ambient: o.Ambient}
	for _, name := range o.AllowedHosts {
		b.allowed = append(b.allowed, strings.ToLower(name))
	}
	return b
}

// open are served under any name: they tell no more than that there is a server
// and how it fares, and monitoring asks for them by many names.
var open = map[string]bool{"/livez": true, "/readyz": true, "/metrics": true, "/openapi.json": true, "/" + grpchealth.HealthV1ServiceName + "/": true}

// refuse returns nil if the request may go on.
func (b *browsers) refuse(r *http.Request, pattern string) *problem {
	if err := b.origins.Check(r); err != nil {
		return newProblem(http.StatusForbidden, "a page of another origin may not call this server: "+err.Error(), nil)
	}
	if b.ambient == nil || open[pattern] || len(r.Header["Authorization"]) > 0 || r.TLS != nil || b.known(r.Host) || !b.ambient() {
		return nil
	}
	return newProblem(http.StatusMisdirectedRequest, fmt.Sprintf("the Host header names %q, which is not known to be this server, and the request shows no token: "+
		"call it by its IP address, send a token, or add the name to server.allowed_hosts", protocol.Clip(r.Host, 100)), nil)
}

// known reports whether a Host header can't have come by a name of a stranger's
// choice: IP addresses are no names, and names without a dot are nobody's domain.
func (b *browsers) known(hostport string) bool {
	host := hostport
	if name, _, err := net.SplitHostPort(hostport); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	if host == "" || !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") {
		return true // HTTP/1.0 and sockets without a name have none
	}
	for _, name := range b.allowed {
		if name == "*" || name == host || strings.HasPrefix(name, "*.") && strings.HasSuffix(host, name[1:]) {
			return true
		}
	}
	return false
}
