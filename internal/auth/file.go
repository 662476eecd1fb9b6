package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// pollEvery is how often a token file is read. A change counts once two
	// reads in a row have found it, as the first may have come amid a write.
	pollEvery = 200 * time.Millisecond
	// maxFileBytes bounds a token file.
	maxFileBytes = 1 << 20
)

// File is a token file that is read again when it changes. It keeps hashes of
// tokens only.
type File struct {
	path      string
	log       *slog.Logger
	anonymous []string               // the roles of callers without a token, if there is a file
	tokens    atomic.Pointer[Tokens] // nil: there is no file

	// Of Run alone: what the last read found, and what the last one found that
	// was acted on.
	last, judged string
}

// Open reads the token file at path; "" is for no file, which knows no tokens
// and gives anonymous callers every role. With a file they have the roles
// anonymous. The error tells what is wrong with the file or the roles. A file
// with tokens in it that others than its owner can read, and tokens without roles, are logged as
// warnings. Changes are seen while Run runs.
func Open(path string, log *slog.Logger, anonymous ...string) (*File, error) {
	roles, err := ParseRoles(anonymous)
	if err != nil {
		return nil, fmt.Errorf("roles of anonymous callers: %w", err)
	}
	f := &File{path: path, log: log, anonymous: roles}
	if path == "" {
		return f, nil
	}
	tokens, text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	f.tokens.Store(tokens)
	f.judged = state(text, nil)
	f.last = f.judged
	f.warn(tokens)
	plain := slices.ContainsFunc(tokens.entries, func(e entry) bool { return e.plain })
	if fi, err := os.Stat(path); plain && err == nil && fi.Mode().Perm()&0o044 != 0 {
		log.Warn("the tokens file can be read by its group or by everyone: chmod 600, or keep hashes (sha256:) in it",
			"file", path, "mode", fi.Mode().Perm().String())
	}
	return f, nil
}

// ReadFile reads a token file, once. The error tells what is wrong with it.
func ReadFile(path string) (*Tokens, error) {
	tokens, _, err := readFile(path)
	return tokens, err
}

func readFile(path string) (*Tokens, []byte, error) {
	text, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	tokens, err := Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return tokens, text, nil
}

// Named reports whether there are principals, so that an anonymous caller may be
// one of them.
func (f *File) Named() bool {
	tokens := f.tokens.Load()
	return tokens != nil && tokens.Len() > 0
}

// Ambient reports whether callers may do anything without showing a token.
func (f *File) Ambient() bool {
	tokens := f.tokens.Load()
	return tokens == nil || len(f.anonymous) > 0 || len(tokens.certificates) > 0
}

// Check tells whether Open would succeed.
func Check(path string) error {
	_, err := Open(path, slog.New(slog.DiscardHandler))
	return err
}

// Run reads the file again whenever it changes, within a second, until ctx
// ends. A file that can't be used is logged, and the tokens known before stay
// valid.
func (f *File) Run(ctx context.Context) error {
	if f.path == "" {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		f.look()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look reads the file once.
func (f *File) look() {
	text, err := read(f.path)
	now := state(text, err)
	settled := now == f.last
	f.last = now
	if !settled || now == f.judged {
		return
	}
	f.judged = now
	var tokens *Tokens
	if err == nil {
		tokens, err = Parse(text)
	}
	if err != nil {
		f.log.Warn("the changed tokens file can't be used; the tokens known before stay valid", "file", f.path, "error", err)
		return
	}
	f.tokens.Store(tokens)
	f.log.Info("tokens file read again", "file", f.path, "tokens", tokens.Len())
	f.warn(tokens)
}

// warn tells of tokens that are of no use.
func (f *File) warn(tokens *Tokens) {
	noRoles, expired := tokens.unusable(time.Now())
	if len(noRoles) > 0 {
		f.log.Warn("tokens without roles may call nothing: add roles=ROLE,… to their lines", "file", f.path, "lines", noRoles, "roles", AllRoles())
	}
	if len(expired) > 0 {
		f.log.Warn("tokens have expired and are refused", "file", f.path, "lines", expired)
	}
}

// state tells apart what reading a file found, without keeping it.
func state(text []byte, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// read returns what is in a file.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	return text, nil
}
