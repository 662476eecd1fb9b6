package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// decoder reads typed fields and keeps the first fault.
type decoder struct {
	values map[string]any
	err    error
}

func (d *decoder) fail(field, format string, args ...any) {
	if d.err == nil {
		d.err = Errorf(CodeInputInvalid, field, format, args...)
	}
}

func (d *decoder) version() {
	if v := d.optional(FieldVersion, maxName); v != WireVersion {
		d.fail(FieldVersion, "is %q, this reader understands version %s", Clip(v, 16), WireVersion)
	}
}

func (d *decoder) optional(field string, limit int) string {
	v, ok := d.values[field]
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		s = fmt.Sprint(v)
	}
	if len(s) > limit {
		d.fail(field, "has %d bytes, at most %d are allowed", len(s), limit)
		return ""
	}
	if field == FieldError {
		return s // goes through Text
	}
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		d.fail(field, "is not valid UTF-8 without NUL")
		return ""
	}
	return s
}

// bytes is an optional field that holds JSON; nil if it is empty.
func (d *decoder) bytes(field string) []byte {
	if s := d.optional(field, maxContent); s != "" {
		return []byte(s)
	}
	return nil
}

func (d *decoder) required(field string, limit int) string {
	s := d.optional(field, limit)
	if s == "" {
		d.fail(field, "is missing")
	}
	return s
}

func (d *decoder) id(field string) ID {
	id, err := ParseID(d.required(field, maxName))
	if err != nil {
		d.fail(field, "%v", err)
	}
	return id
}

func (d *decoder) integer(field string, lo, hi int64) int64 {
	s := d.required(field, maxName)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lo || n > hi {
		d.fail(field, "is %q, want a whole number from %d to %d", Clip(s, 32), lo, hi)
		return lo
	}
	return n
}

// maxMillis bounds times on the wire: the year 9999.
const maxMillis = 253402300799999

func (d *decoder) time(field string) time.Time {
	return time.UnixMilli(d.integer(field, 0, maxMillis)).UTC()
}

func (d *decoder) optionalTime(field string) time.Time {
	if d.optional(field, maxName) == "" {
		return time.Time{}
	}
	if t := d.time(field); t.UnixMilli() != 0 {
		return t
	}
	return time.Time{} // millis' zero
}
