package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// ID is the UUID under which a task is stored.
type ID [16]byte

// String returns the canonical lower-case form.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return string(b[:])
}

// MarshalText returns the canonical form, for logs and JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// IsZero reports whether id is the nil UUID, which no task has.
func (id ID) IsZero() bool { return id == ID{} }

// Version returns the UUID version, 0 to 15.
func (id ID) Version() int { return int(id[6] >> 4) }

// Time returns the moment a version 7 UUID was made, in UTC.
func (id ID) Time() time.Time {
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC()
}

// Named reports whether the id was derived from a caller's own string.
func (id ID) Named() bool { return id[0] == 0xff }

// ParseID parses the canonical lower-case form of a UUID and no other.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, fmt.Errorf("%q is not a UUID in its canonical lower-case form", Clip(s, 64))
	}
	parts := [...][3]int{{0, 8, 0}, {9, 13, 4}, {14, 18, 6}, {19, 23, 8}, {24, 36, 10}}
	for _, p := range parts {
		if _, err := hex.Decode(id[p[2]:], []byte(s[p[0]:p[1]])); err != nil {
			return ID{}, fmt.Errorf("%q is not a UUID in its canonical lower-case form", Clip(s, 64))
		}
	}
	if id.String() != s {
		return ID{}, fmt.Errorf("%q is not a UUID in its canonical lower-case form", Clip(s, 64))
	}
	return id, nil
}

// NameID derives the stored id of a task that its caller named: a version 8
// UUID whose first byte is 0xff, so that it never falls into a dated
// partition, and whose rest is a hash of tenant and name.
func NameID(tenant, name string) ID {
	return hashID(0xff, "task", tenant, name)
}

// DLQID derives the id of a failed task's dead letter. A task has one at most,
// so repeats of the same dead letter carry the same id.
func DLQID(task ID) ID { return hashID(0xfe, "dlq", string(task[:]), "") }

func hashID(first byte, kind, a, b string) ID {
	h := sha256.New()
	for _, s := range []string{kind, a, b} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	var id ID
	copy(id[:], h.Sum(nil))
	id[0] = first
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// Bounds of a "recent" UUIDv7, relative to the server's clock.
const (
	maxIDAge   = 24 * time.Hour
	maxIDAhead = time.Hour
)

// ResolveTaskID tells under which id a caller's task_id is stored: a recent
// UUIDv7 (made at most 24 h ago and 1 h ahead of now) as it is, any other
// string as a name of the tenant. A UUIDv7 outside those bounds is stale: it
// is a name too, unless a task is stored under it already, which only the
// caller can look up.
func ResolveTaskID(tenant, s string, now time.Time) (id ID, stale bool) {
	u, err := ParseID(s)
	if err != nil || u.Version() != 7 {
		return NameID(tenant, s), false
	}
	if t := u.Time(); t.Before(now.Add(-maxIDAge)) || t.After(now.Add(maxIDAhead)) {
		return NameID(tenant, s), true
	}
	return u, false
}

// Clip shortens s to n bytes and an ellipsis, for an error text or a log, and cuts
// no rune in half.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
