// Package tlsfiles makes the TLS settings of servers and clients from PEM files
// that may be replaced while a process runs, as rotated certificates are.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// maxFileBytes bounds a PEM file.
const maxFileBytes = 1 << 20

// Client names the files of a client. All may be empty.
type Client struct {
	// CAFile holds the authorities that servers' certificates must come from;
	// empty: those of the system. It is read once.
	CAFile string
	// CertFile and KeyFile are shown to servers that ask for a certificate; both
	// or neither. They are read for each connection.
	CertFile, KeyFile string
}

// Config reads the files. It returns nil if none is named, and an error that
// names the file that can't be used.
func (c Client) Config() (*tls.Config, error) {
	if c == (Client{}) {
		return nil, nil //nolint:nilnil // no settings are needed
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pool, err := authorities(c.CAFile)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = pool
	}
	if c.CertFile == "" && c.KeyFile == "" {
		return cfg, nil
	}
	if c.CertFile == "" || c.KeyFile == "" {
		return nil, errors.New("a client certificate takes two files: the certificate and its key")
	}
	if _, err := pair(c.CertFile, c.KeyFile); err != nil {
		return nil, err
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return pair(c.CertFile, c.KeyFile)
	}
	return cfg, nil
}

// pair reads a certificate and its key.
func pair(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := read(certFile)
	if err != nil {
		return nil, err
	}
	key, err := read(keyFile)
	if err != nil {
		return nil, err
	}
	return pairOf(certFile, cert, keyFile, key)
}

// pairOf is pair for files that have been read.
func pairOf(certFile string, cert []byte, keyFile string, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s and key %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}

// authorities reads the certificates in a file.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := read(file)
	if err != nil {
		return nil, err
	}
	return poolOf(file, pem)
}

// poolOf is authorities for a file that has been read.
func poolOf(file string, pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// read returns what is in a file.
func read(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, maxFileBytes)
	}
	return b, nil
}
