// Package auth tells who callers are and what they may call. Principals, their
// tokens and their roles are in a file (auth.tokens_file), one token a line:
//
//	# name  token, or sha256: and the hash of one, or cert: and a name of a client certificate
//	alice   8f1c0c9b2f4be1a3a7a1c2d94c0be0a6f1d2c3b4a5968778  roles=producer,operator
//	bob     sha256:0f3c…64 hexadecimal digits…  roles=approver expires=2027-03-31T18:00:00+02:00
//	shop    cert:shop.example.com  roles=producer tenants=shop
//
// A line with tenants= binds what the principal may do and see to these. A caller sends its token as Authorization: Bearer TOKEN. A call without the
// header is anonymous; one with a header that cannot be understood, or with a
// token that is not in the file or has expired, is refused, whatever it asks
// for. Each RPC declares the roles that may call it; one that declares none is
// refused.
package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-dev/penstock/protocol"
)

const (
	// minToken and maxToken bound a token in bytes.
	minToken, maxToken = 16, 1024
	// maxName bounds the name of a principal in bytes.
	maxName = 64
	// hashPrefix begins the hash of a token in place of the token.
	hashPrefix = "sha256:"
	// certPrefix begins a name of a client certificate in place of a token.
	certPrefix = "cert:"
	// rolesPrefix, tenantsPrefix and expiresPrefix begin what may follow a token.
	rolesPrefix, tenantsPrefix, expiresPrefix = "roles=", "tenants=", "expires="
	// everyTenant in place of a list binds to none.
	everyTenant = "*"
	// maxTenants bounds the tenants of a line.
	maxTenants = 1000
)

// Tokens are the principals of a token file and the hashes of their tokens. It
// does not change.
type Tokens struct {
	entries      []entry
	certificates map[string]*entry // by the name of the certificate
}

// entry is one line of a token file.
type entry struct {
	name string
	hash [sha256.Size]byte
	// certificate is a name of a client certificate that stands for a token; else "".
	certificate string
	roles       []string  // sorted; nil: the line names none
	tenants     []string  // sorted; nil: every tenant
	named       bool      // the line says which tenants
	expires     time.Time // zero: never
	plain       bool      // the line has the token itself
	line        int       // its number, from 1
}

// equal reports whether two lines say the same.
func (e *entry) equal(o *entry) bool {
	return e.name == o.name && e.hash == o.hash && e.certificate == o.certificate && slices.Equal(e.roles, o.roles) && slices.Equal(e.tenants, o.tenants) && e.expires.Equal(o.expires)
}

// Parse reads the text of a token file. A name may have several tokens, each
// with roles of its own; a token has one name. A line that has expired is no
// error. The error tells the line and never repeats what is in it: names and
// tokens may have been mixed up.
func Parse(text []byte) (*Tokens, error) {
	t := &Tokens{certificates: map[string]*entry{}}
	owners := map[[sha256.Size]byte]*entry{}
	spellings := map[string]string{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		e, err := parseEntry(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		e.line = number
		folded := strings.ToLower(e.name) // two spellings of one name must not count as two people
		if as, ok := spellings[folded]; ok && as != e.name {
			return nil, fmt.Errorf("line %d: the name differs from one on an earlier line in case only", number)
		}
		spellings[folded] = e.name
		owner, what := owners[e.hash], "token"
		if e.certificate != "" {
			owner, what = t.certificates[e.certificate], "certificate"
		}
		switch {
		case owner == nil && e.certificate != "":
			t.certificates[e.certificate] = &e
			t.entries = append(t.entries, e)
		case owner == nil:
			owners[e.hash] = &e
			t.entries = append(t.entries, e)
		case owner.name != e.name:
			return nil, fmt.Errorf("line %d: the %s is on an earlier line under another name", number, what)
		case !owner.equal(&e):
			return nil, fmt.Errorf("line %d: the %s is on an earlier line with other roles, other tenants or another expiry", number, what)
		}
	}
	return t, nil
}

// parseEntry reads the words of one line.
func parseEntry(fields []string) (entry, error) {
	if len(fields) < 2 {
		return entry{}, fmt.Errorf("has 1 word, want a name and a token (or %sHASH, or %sNAME), and %sROLE,…", hashPrefix, certPrefix, rolesPrefix)
	}
	e := entry{name: fields[0]}
	if err := CheckName(e.name); err != nil {
		return e, err
	}
	if err := e.setToken(fields[1]); err != nil {
		return e, err
	}
	for i, field := range fields[2:] {
		if err := e.setAttribute(field); err != nil {
			return e, fmt.Errorf("word %d: %w", i+3, err)
		}
	}
	if e.tenants != nil && slices.Contains(e.roles, RoleAdmin) {
		return e, fmt.Errorf("the role %s is about every tenant: give other roles, or leave %s out", RoleAdmin, tenantsPrefix)
	}
	return e, nil
}

// setToken takes a token, the hash of one, or the name of a certificate.
func (e *entry) setToken(word string) error {
	if name, ok := strings.CutPrefix(word, certPrefix); ok {
		e.certificate = name
		return CheckCertificate(name)
	}
	digits, isHash := strings.CutPrefix(word, hashPrefix)
	if e.plain = !isHash; e.plain {
		e.hash = sha256.Sum256([]byte(word))
		return CheckToken(word)
	}
	hash, err := hex.DecodeString(digits)
	if err != nil || len(hash) != len(e.hash) {
		return fmt.Errorf("%s must be followed by %d hexadecimal digits", hashPrefix, 2*len(e.hash))
	}
	copy(e.hash[:], hash)
	return nil
}

// setAttribute takes what follows the token.
func (e *entry) setAttribute(word string) error {
	if list, ok := strings.CutPrefix(word, rolesPrefix); ok {
		if e.roles != nil {
			return fmt.Errorf("a line has %s once", rolesPrefix)
		}
		roles, err := ParseRoles(strings.Split(list, ","))
		e.roles = roles
		return err
	}
	if list, ok := strings.CutPrefix(word, tenantsPrefix); ok {
		if e.named {
			return fmt.Errorf("a line has %s once", tenantsPrefix)
		}
		tenants, err := ParseTenants(strings.Split(list, ","))
		e.tenants, e.named = tenants, true
		return err
	}
	if at, ok := strings.CutPrefix(word, expiresPrefix); ok {
		if !e.expires.IsZero() {
			return fmt.Errorf("a line has %s once", expiresPrefix)
		}
		expires, err := ParseExpiry(at)
		e.expires = expires
		return err
	}
	return fmt.Errorf("after the token there may be %sROLE,…, %sTENANT,… and %sTIME only", rolesPrefix, tenantsPrefix, expiresPrefix)
}

// ParseTenants checks the names of the tenants that a principal is bound to, sorts
// them and drops repetitions; "*" alone is nil, every tenant. The error does not
// repeat what it was given.
func ParseTenants(names []string) ([]string, error) {
	if len(names) == 1 && names[0] == everyTenant {
		return nil, nil
	}
	if len(names) > maxTenants {
		return nil, fmt.Errorf("the list of tenants has %d names, at most %d are allowed", len(names), maxTenants)
	}
	for i, name := range names {
		if name == "" || len(name) > 255 || name == everyTenant || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
			return nil, fmt.Errorf("tenant %d of the list must be 1 to 255 bytes without white space, or the list %s alone", i+1, everyTenant)
		}
	}
	tenants := slices.Clone(names)
	slices.Sort(tenants)
	return slices.Compact(tenants), nil
}

// ParseExpiry reads the time at which a token expires, RFC 3339 with an offset.
// The error does not repeat it.
func ParseExpiry(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.IsZero() {
		return time.Time{}, fmt.Errorf("%s must be a time with an offset, such as 2027-03-31T18:00:00+02:00", expiresPrefix)
	}
	return at, nil
}

// CheckName checks that name can be one of a principal: 1 to 64 of
// A-Z a-z 0-9 . _ -, and not "anonymous".
func CheckName(name string) error {
	if strings.EqualFold(name, protocol.Anonymous) {
		return fmt.Errorf("nobody can be named %s: that is what records call those without a token", name)
	}
	if len(name) < 1 || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", r)
	}) {
		return fmt.Errorf("a name must be 1 to %d of A-Z a-z 0-9 . _ -", maxName)
	}
	return nil
}

// CheckToken checks that token can be one: 16 to 1,024 visible ASCII characters
// that don't begin with sha256:, cert:, roles=, tenants= or expires=. The error does not repeat it.
func CheckToken(token string) error {
	switch {
	case len(token) < minToken || len(token) > maxToken:
		return fmt.Errorf("a token must have %d to %d characters, got %d", minToken, maxToken, len(token))
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("a token must be visible ASCII characters without spaces")
	case strings.HasPrefix(token, rolesPrefix), strings.HasPrefix(token, tenantsPrefix), strings.HasPrefix(token, expiresPrefix):
		return fmt.Errorf("a token must not begin with %s, %s or %s: those follow it", rolesPrefix, tenantsPrefix, expiresPrefix)
	case strings.HasPrefix(token, certPrefix):
		return fmt.Errorf("a token must not begin with %s: that is for the name of a certificate", certPrefix)
	case strings.HasPrefix(token, hashPrefix):
		return fmt.Errorf("a token must not begin with %s: that is for the hash of one", hashPrefix)
	}
	return nil
}

// Len is the number of tokens.
func (t *Tokens) Len() int { return len(t.entries) }

// Line is what a line of a token file says, without the token.
type Line struct {
	Name        string
	Certificate string    // the name of a client certificate; "": the line has a token
	Roles       []string  // sorted
	Tenants     []string  // sorted; nil: every tenant
	Expires     time.Time // zero: never
}

// Lines lists the tokens in the order of the file.
func (t *Tokens) Lines() []Line {
	lines := make([]Line, len(t.entries))
	for i, e := range t.entries {
		lines[i] = Line{e.name, e.certificate, slices.Clone(e.roles), slices.Clone(e.tenants), e.expires}
	}
	return lines
}

// unusable lists the numbers of the lines whose tokens are of no use: those
// without roles, and those that have expired by now. Logs must not repeat what
// stands where a name should: it may be a token.
func (t *Tokens) unusable(now time.Time) (noRoles, expired []int) {
	for i := range t.entries {
		e := &t.entries[i]
		if len(e.roles) == 0 {
			noRoles = append(noRoles, e.line)
		}
		if e.expired(now) {
			expired = append(expired, e.line)
		}
	}
	return noRoles, expired
}

func (e *entry) expired(now time.Time) bool { return !e.expires.IsZero() && !now.Before(e.expires) }

// Principal returns whose token it is, expired or not.
func (t *Tokens) Principal(token string) (name string, ok bool) {
	e := t.find(token)
	if e == nil {
		return "", false
	}
	return e.name, true
}

// find returns the entry of a token, or nil. The time it takes does not depend
// on what the tokens are.
func (t *Tokens) find(token string) *entry {
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.entries {
		if t.entries[i].certificate != "" {
			continue // it has no hash
		}
		equal := subtle.ConstantTimeCompare(t.entries[i].hash[:], hash[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return nil
	}
	return &t.entries[found]
}
