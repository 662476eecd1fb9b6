package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// maxCertificateName bounds a name of a client certificate in bytes.
const maxCertificateName = 255

// certificateKey is that of the certificate of a call's connection in a context.
type certificateKey struct{}

// Certificates lets the principals of token files be known by the certificates of
// their connections. Only those that were checked against
// server.tls.client_ca_file count.
func Certificates(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0 {
			r = r.WithContext(context.WithValue(r.Context(), certificateKey{}, r.TLS.VerifiedChains[0][0]))
		}
		next.ServeHTTP(w, r)
	})
}

// CheckCertificate checks what may follow cert: in a token file. The error does
// not repeat it.
func CheckCertificate(name string) error {
	if len(name) < 1 || len(name) > maxCertificateName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s must be followed by a name of a certificate: 1 to %d visible ASCII characters without spaces", certPrefix, maxCertificateName)
	}
	return nil
}

var errTwoPrincipals = errors.New("the client certificate has names of two principals of the tokens file; send a token, or use a certificate with one of them")

// certified returns the line for the certificate of ctx's connection; nil if it
// has none, or none of its names is in the file.
func (t *Tokens) certified(ctx context.Context) (*entry, error) {
	certificate, _ := ctx.Value(certificateKey{}).(*x509.Certificate)
	if certificate == nil || len(t.certificates) == 0 {
		return nil, nil
	}
	var found *entry
	for _, name := range namesOf(certificate) {
		e := t.certificates[name]
		if e != nil && found != nil && e != found {
			return nil, connect.NewError(connect.CodeUnauthenticated, errTwoPrincipals)
		}
		if e != nil {
			found = e
		}
	}
	return found, nil
}

// namesOf lists the names of a certificate: its subject alternative names (URIs,
// DNS names, e-mail addresses), and its common name.
func namesOf(c *x509.Certificate) (names []string) {
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	names = append(append(names, c.DNSNames...), c.EmailAddresses...)
	return append(names, c.Subject.CommonName)
}
