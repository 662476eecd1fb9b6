package tlsfiles

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// pollEvery is how often a server's files are read. A change counts once two
// reads in a row have found it, as the first may have come between the
// replacement of a certificate and that of its key.
const pollEvery = time.Second

// Server names the files of a server.
type Server struct {
	// CertFile and KeyFile are the server's certificate, with its chain, and key.
	CertFile, KeyFile string
	// ClientCAFile, if set, holds the authorities of client certificates: every
	// client must show one.
	ClientCAFile string
}

// Keeper holds the settings of a server and follows its files.
type Keeper struct {
	files   Server
	log     *slog.Logger
	current atomic.Pointer[tls.Config]

	// Of Run alone: what the last read found, and what the last one found that
	// was acted on.
	last, judged [sha256.Size]byte
}

// Open reads the files. The error names the one that can't be used. Changes are
// seen while Run runs.
func Open(files Server, log *slog.Logger) (*Keeper, error) {
	if files.CertFile == "" || files.KeyFile == "" {
		return nil, errors.New("TLS takes two files: the certificate and its key")
	}
	k := &Keeper{files: files, log: log}
	texts, err := k.read()
	if err != nil {
		return nil, err
	}
	cfg, err := k.config(texts)
	if err != nil {
		return nil, err
	}
	k.current.Store(cfg)
	k.judged = state(texts, nil)
	k.last = k.judged
	return k, nil
}

// Config is for a listener: each handshake uses the files as they were read
// last. It speaks TLS 1.2 and newer.
func (k *Keeper) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: protocols(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return k.current.Load(), nil
		},
	}
}

// protocols are those that the RPC port speaks.
func protocols() []string { return []string{"h2", "http/1.1"} }

// Run reads the files again whenever they change, within a few seconds, until
// ctx ends. Files that can't be used are logged, and the last good ones stay in
// use. Connections that are open already go on. A nil Keeper has no files.
func (k *Keeper) Run(ctx context.Context) error {
	if k == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		k.look()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look reads the files once.
func (k *Keeper) look() {
	texts, err := k.read()
	now := state(texts, err)
	settled := now == k.last
	k.last = now
	if !settled || now == k.judged {
		return
	}
	k.judged = now
	var cfg *tls.Config
	if err == nil {
		cfg, err = k.config(texts)
	}
	if err != nil {
		k.log.Warn("the changed TLS files can't be used; the ones before stay in use", "error", err)
		return
	}
	k.current.Store(cfg)
	k.log.Info("TLS files read again", "cert_file", k.files.CertFile, "expires", cfg.Certificates[0].Leaf.NotAfter)
}

// read returns what is in the files: certificate, key, authorities.
func (k *Keeper) read() (texts [3][]byte, err error) {
	for i, file := range []string{k.files.CertFile, k.files.KeyFile, k.files.ClientCAFile} {
		if file == "" {
			continue
		}
		if texts[i], err = read(file); err != nil {
			return texts, err
		}
	}
	return texts, nil
}

// config makes the settings from what is in the files.
func (k *Keeper) config(texts [3][]byte) (*tls.Config, error) {
	cert, err := pairOf(k.files.CertFile, texts[0], k.files.KeyFile, texts[1])
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols(), Certificates: []tls.Certificate{*cert}}
	if k.files.ClientCAFile == "" {
		return cfg, nil
	}
	if cfg.ClientCAs, err = poolOf(k.files.ClientCAFile, texts[2]); err != nil {
		return nil, err
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	return cfg, nil
}

// state tells apart what a read found, without keeping it.
func state(texts [3][]byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("error: " + err.Error()))
	}
	var all bytes.Buffer
	for _, text := range texts {
		sum := sha256.Sum256(text)
		all.Write(sum[:])
	}
	return sha256.Sum256(all.Bytes())
}
