package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// cursor is where a page of a list starts: after what it names. Which fields are
// set is up to the list. Callers see it as a page_token, and may send anything in
// its place.
type cursor struct {
	// Filter is the digest of the request that the page before answered.
	Filter string    `json:"f"`
	At     time.Time `json:"at,omitzero"`
	ID     string    `json:"id,omitempty"`
	N      int32     `json:"n,omitempty"`
	// Key has the parts of a key that callers chose, each at most maxKeyPart bytes.
	Key []string `json:"k,omitempty"`
}

const (
	// maxToken is the longest page_token that is decoded: three parts of a key, each
	// byte of which may take six in JSON, fit in.
	maxToken   = 16 << 10
	maxKeyPart = 512
)

// paged is a request for a page of a list.
type paged interface {
	proto.Message
	GetPageToken() string
}

// tokenFor is the page_token of the page of m's list that starts at c.
func tokenFor(m paged, c cursor) string {
	c.Filter = filterDigest(m)
	b, _ := json.Marshal(c) // times, texts and numbers always have a JSON form
	return base64.RawURLEncoding.EncodeToString(b)
}

// cursorOf reads m's page_token; nil if m asks for the first page. A token of
// another list, or of this list with another filter, is refused: it would leave
// out what lies before it.
func cursorOf(m paged) (*cursor, error) {
	token := m.GetPageToken()
	if token == "" {
		return nil, nil
	}
	var c cursor
	b, err := base64.RawURLEncoding.DecodeString(token[:min(len(token), maxToken)])
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.Filter == "" || len(token) > maxToken {
		return nil, badToken()
	}
	if c.Filter != filterDigest(m) {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "page_token",
			"is of a list with other filters: send it with those of the page that it came with (page_size may differ), or send none to start with the first page")
	}
	c.At = c.At.UTC()
	if y := c.At.Year(); y < 1 || y > 9999 || c.N < 0 {
		return nil, badToken()
	}
	if _, err := c.id(); err != nil {
		return nil, err
	}
	for _, k := range c.Key {
		if len(k) > maxKeyPart || strings.ContainsRune(k, 0) {
			return nil, badToken()
		}
	}
	return &c, nil
}

func badToken() error {
	return protocol.Errorf(protocol.CodeInputInvalid, "page_token", "is not a next_page_token of an earlier page: send one as it came, or none to start with the first page")
}

// id is the cursor's ID; zero if it has none.
func (c *cursor) id() (pgid.ID, error) {
	if c.ID == "" {
		return pgid.ID{}, nil
	}
	id, err := protocol.ParseID(c.ID)
	if err != nil {
		return pgid.ID{}, badToken()
	}
	return pgid.ID(id), nil
}

// key returns the n parts of the cursor's key.
func (c *cursor) key(n int) ([]string, error) {
	if len(c.Key) != n {
		return nil, badToken()
	}
	return c.Key, nil
}

// nameAfter is where a page of a list in order of names starts; empty: at the
// first one.
func nameAfter(m paged) (string, error) {
	c, err := cursorOf(m)
	if err != nil || c == nil {
		return "", err
	}
	key, err := c.key(1)
	if err != nil {
		return "", err
	}
	return key[0], nil
}

// after is the place of a row that is known by a time and an id.
func after(at time.Time, id pgid.ID) cursor { return cursor{At: at, ID: protocol.ID(id).String()} }

// filterDigest is a digest of everything in a request that says what is listed:
// all but the size and the place of the page. The order of a set's values does
// not count.
func filterDigest(m proto.Message) string {
	c := proto.Clone(m)
	r := c.ProtoReflect()
	r.SetUnknown(nil)
	r.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Name() == "page_size" || f.Name() == "page_token":
			r.Clear(f)
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			sortTexts(v.List())
		}
		return true
	})
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		b = nil // only a text that is no UTF-8, which no request that was decoded has
	}
	sum := sha256.Sum256(append([]byte(string(r.Descriptor().FullName())+"\n"), b...))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// sortTexts sorts a list in place and drops repeats.
func sortTexts(l protoreflect.List) {
	texts := make([]string, l.Len())
	for i := range texts {
		texts[i] = l.Get(i).String()
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	l.Truncate(len(texts))
	for i, s := range texts {
		l.Set(i, protoreflect.ValueOfString(s))
	}
}
