package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tokenBytes is how random a token is.
const tokenBytes = 24

// Made are the files of MakeFiles.
type Made struct {
	// TokensFile is for auth.tokens_file. All paths are absolute.
	TokensFile string
	// TokenFiles has one file for each of the people, in their order: that
	// principal's token alone, for token_file.
	TokenFiles []string
}

// MakeFiles provides a directory, which it makes if need be, with a token file
// "tokens" and a file NAME.token for each of the people, readable by their owner
// only. Each of the people is a name and what its line says besides the token,
// e.g. "alice roles=producer,operator". What is there already is kept: tokens
// stay valid over restarts, and lines added to the token file stay in it; only
// lines of these people that name no roles get theirs. It is for systems that
// people try out.
func MakeFiles(dir string, people ...string) (Made, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(dir), 0o755) // others may have to get through those
	}
	if err == nil {
		if err = os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil // what is no directory shows below
		}
	}
	if err != nil {
		return Made{}, fmt.Errorf("make a directory for tokens: %w", err)
	}
	m := Made{TokensFile: filepath.Join(dir, "tokens")}
	text, err := read(m.TokensFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("tokens file: %w", err)
	}
	tokens, err := Parse(text)
	if err != nil {
		return m, fmt.Errorf("tokens file %s: %w", m.TokensFile, err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	before := string(text)
	for _, person := range people {
		name, attributes, _ := strings.Cut(person, " ")
		if err := CheckName(name); err != nil {
			return m, err
		}
		path := filepath.Join(dir, name+".token")
		m.TokenFiles = append(m.TokenFiles, path)
		token, err := tokenIn(path)
		if err != nil {
			return m, err
		}
		switch e := tokens.find(token); {
		case e == nil || e.name != name:
			text = fmt.Append(text, LineOf(name, token, attributes))
		case len(e.roles) == 0 && attributes != "":
			text = amend(text, e, attributes)
		}
	}
	if string(text) == before && before != "" {
		return m, nil
	}
	if _, err := Parse(text); err != nil {
		return m, fmt.Errorf("tokens file %s: with the tokens of the files beside it, %w", m.TokensFile, err)
	}
	return m, write(m.TokensFile, text)
}

// LineOf is the line of a token file for a token, which it holds as a hash.
// attributes is what follows, "" for nothing.
func LineOf(name, token, attributes string) string {
	return strings.TrimRight(name+" "+Hash(token)+" "+attributes, " ") + "\n"
}

// Hash is what may stand for a token in a token file.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// amend adds to the lines that are the entry, as files of before there were
// roles have them.
func amend(text []byte, e *entry, attributes string) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && fields[0][0] != '#' {
			if l, err := parseEntry(fields); err == nil && l.equal(e) {
				line = append([]byte(strings.Join(fields, " ")+" "+attributes), '\n')
			}
		}
		out = append(out, line...)
	}
	return out
}

// NewToken makes a random token.
func NewToken() string {
	random := make([]byte, tokenBytes)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}

// tokenIn returns the token in a file, which it makes if there is none.
func tokenIn(path string) (string, error) {
	text, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		token := NewToken()
		return token, write(path, []byte(token+"\n"))
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if err := CheckToken(token); err != nil {
		return "", fmt.Errorf("token file %s: %w; remove the file to get a new one", path, err)
	}
	return token, nil
}

// write replaces a file at once, so that nobody reads half of it.
func write(path string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // readable by its owner only
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
