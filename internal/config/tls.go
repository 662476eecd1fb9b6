package config

import "github.com/penstock-dev/penstock/internal/tlsfiles"

// ServerTLS is the encryption of the RPC port. The files are read again when
// they change.
type ServerTLS struct {
	CertFile     string `mapstructure:"cert_file" doc:"PEM file of the certificate of the RPC port, with the chain after it. With it the port speaks TLS only (1.2 or newer); key_file is required then. A change is read within a few seconds."`
	KeyFile      string `mapstructure:"key_file" doc:"PEM file of the private key of server.tls.cert_file."`
	ClientCAFile string `mapstructure:"client_ca_file" doc:"PEM file of the authorities whose client certificates are accepted. With it every caller must show one, also of /livez, /readyz and /metrics. A change is read within a few seconds."`
}

// ClientTLS is how a client of the orchestrator, whose URL is https://, knows it,
// and is known.
type ClientTLS struct {
	CAFile   string `mapstructure:"ca_file" doc:"PEM file of the authorities that the orchestrator's certificate must come from. Empty: those of the system."`
	CertFile string `mapstructure:"cert_file" doc:"PEM file of the client certificate, where server.tls.client_ca_file asks for one; key_file is required then. It is read for each connection."`
	KeyFile  string `mapstructure:"key_file" doc:"PEM file of the private key of the client certificate."`
}

// Files are the names for package tlsfiles.
func (c ServerTLS) Files() tlsfiles.Server {
	return tlsfiles.Server{CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile}
}

// Files are the names for package tlsfiles.
func (c ClientTLS) Files() tlsfiles.Client {
	return tlsfiles.Client{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
}

// pair faults a certificate without its key, and the other way round.
func (f *faults) pair(section, cert, key string) {
	switch {
	case cert != "" && key == "":
		f.addf(section+".key_file", "is required with %s.cert_file", section)
	case cert == "" && key != "":
		f.addf(section+".cert_file", "is required with %s.key_file", section)
	}
}

// serverTLS checks the names; NewOrchestrator reads the files.
func (f *faults) serverTLS(c ServerTLS) {
	f.pair("server.tls", c.CertFile, c.KeyFile)
	if c.ClientCAFile != "" && c.CertFile == "" {
		f.addf("server.tls.client_ca_file", "asks for client certificates, which takes TLS; set server.tls.cert_file and key_file too")
	}
}
