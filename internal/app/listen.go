package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/tlsfiles"
)

// entrance is how callers come in: the port, its TLS, and who is known.
type entrance struct {
	listener net.Listener
	tls      *tlsfiles.Keeper // nil: the port is not encrypted
	tokens   *auth.File
}

// openEntrance reads the files and opens the port, on which nobody is answered
// yet. The error names the setting that is wrong.
func openEntrance(cfg config.Orchestrator, log *slog.Logger) (e entrance, err error) {
	if e.tokens, err = auth.Open(cfg.Auth.TokensFile, log, cfg.Auth.AnonymousRoles...); err != nil {
		return e, fmt.Errorf("auth.tokens_file: %w", err)
	}
	if files := cfg.Server.TLS.Files(); files != (tlsfiles.Server{}) {
		if e.tls, err = tlsfiles.Open(files, log); err != nil {
			return e, fmt.Errorf("server.tls: %w", err)
		}
	}
	if e.listener, err = net.Listen("tcp", cfg.Server.Listen); err != nil {
		return e, fmt.Errorf("server.listen: %w", err)
	}
	if err := checkExposure(cfg, e.listener.Addr(), log); err != nil {
		return e, errors.Join(err, e.listener.Close())
	}
	e.listener = boundConnections(e.listener, cfg.Server.MaxConnections, cfg.Server.MaxConnectionsPerAddress, log)
	return e, nil
}

// errExposed tells what to do about a port that anyone could use.
var errExposed = errors.New("other machines can reach this address, and nobody would be asked who they are: " +
	"set auth.tokens_file (see docs/authentication.md), or server.tls.client_ca_file, or listen on 127.0.0.1; " +
	"if something else keeps strangers away, set auth.allow_unauthenticated")

// errAnonymousRoles is the same where there are tokens that nobody needs.
var errAnonymousRoles = errors.New("other machines can reach this address, and auth.anonymous_roles lets callers without a token do more than read: " +
	"let it be empty or viewer, or set server.tls.client_ca_file, or listen on 127.0.0.1; " +
	"if something else keeps strangers away, set auth.allow_unauthenticated")

// checkExposure refuses a port that other machines reach and that takes any
// caller, unless the configuration says that this is meant.
func checkExposure(cfg config.Orchestrator, addr net.Addr, log *slog.Logger) error {
	roles, _ := auth.ParseRoles(cfg.Auth.AnonymousRoles) // checked before
	anyone, asks := auth.AllRoles(), errExposed
	if cfg.Auth.TokensFile != "" {
		anyone, asks = slices.DeleteFunc(roles, func(r string) bool { return r == auth.RoleViewer }), errAnonymousRoles
	}
	tcp, ok := addr.(*net.TCPAddr)
	switch {
	case len(anyone) == 0 || ok && tcp.IP.IsLoopback():
		return nil
	case cfg.Server.TLS.ClientCAFile != "":
		log.Warn("every holder of a certificate of server.tls.client_ca_file has these roles without a token; name people in auth.tokens_file, or narrow auth.anonymous_roles",
			"addr", addr.String(), "roles", anyone)
		return nil
	case !cfg.Auth.AllowUnauthenticated:
		return fmt.Errorf("server.listen: %s: %w", addr, asks)
	}
	log.Warn("whoever reaches the RPC port has these roles without a token (auth.allow_unauthenticated)", "addr", addr.String(), "roles", anyone)
	return nil
}

// loopback reports whether a listen address is written as one of this machine
// alone.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}

// serve answers on the port until the server is closed.
func (e entrance) serve(s *http.Server) error {
	if e.tls == nil {
		return s.Serve(e.listener)
	}
	s.TLSConfig = e.tls.Config()
	return s.ServeTLS(e.listener, "", "")
}
