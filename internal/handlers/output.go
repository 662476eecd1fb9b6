package handlers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// resultOf makes a task's result of the output of what, e.g. "response body":
// null if it is empty, the output itself if it is JSON, else a JSON string of
// it in which U+FFFD stands for NUL.
//
// It fails permanently if the store can't keep the result: output that is not
// UTF-8, and JSON with the escape \u0000 or half a surrogate pair. The result
// is at most six times as long as out, since each byte of text may need an
// escape.
func resultOf(what string, out []byte) (json.RawMessage, error) {
	if len(out) == 0 {
		return json.RawMessage("null"), nil
	}
	if !utf8.Valid(out) {
		return nil, task.Permanent(fmt.Errorf("%s is not UTF-8 and can't be kept as a JSON result", what))
	}
	if json.Valid(out) {
		if err := protocol.CheckEscapes(out); err != nil {
			return nil, task.Permanent(fmt.Errorf("%s can't be kept as the result: its JSON %w", what, err))
		}
		return bytes.Trim(out, " \t\r\n"), nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(strings.ReplaceAll(string(out), "\x00", "\uFFFD")); err != nil {
		return nil, task.Permanent(fmt.Errorf("%s has no JSON form: %w", what, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// clean makes text of others fit for an error text: U+FFFD stands for what is
// not UTF-8 and for control characters other than newline and tab; space
// around it is cut off.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n"))
	return strings.TrimSpace(s)
}

// head returns the first n bytes of s, less those of a rune cut in half.
func head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// tail returns the last n bytes of s, less those of a rune cut in half.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	i := len(s) - n
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}

// capped is a Writer that keeps the first max bytes. The first write beyond
// them closes full; what is beyond is read and dropped, so that the writing
// program sees no error. It is for one goroutine.
type capped struct {
	max  int
	buf  []byte
	full chan struct{}
	over bool
}

// newCapped returns a Writer that keeps max bytes.
func newCapped(max int) *capped { return &capped{max: max, full: make(chan struct{})} }

// Write never fails.
func (c *capped) Write(p []byte) (int, error) {
	keep := min(len(p), c.max-len(c.buf))
	c.buf = append(c.buf, p[:keep]...)
	if keep < len(p) && !c.over {
		c.over = true
		close(c.full)
	}
	return len(p), nil
}

// lastBytes is a Writer that keeps the last max bytes, and calls line when one
// was completed. It is for one goroutine.
type lastBytes struct {
	max  int
	buf  []byte
	line func()
}

// Write never fails.
func (l *lastBytes) Write(p []byte) (int, error) {
	n := len(p)
	if l.line != nil && bytes.IndexByte(p, '\n') >= 0 {
		l.line()
	}
	p = p[max(0, n-l.max):]
	if extra := len(l.buf) + len(p) - l.max; extra > 0 {
		l.buf = append(l.buf[:0], l.buf[extra:]...)
	}
	l.buf = append(l.buf, p...)
	return n, nil
}
