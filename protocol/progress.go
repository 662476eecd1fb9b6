package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxProgress is the most bytes of what a handler reports as its progress,
// 4 KiB.
const MaxProgress = 4 << 10

// CheckProgress returns an error if a handler's report can't be stored: it is
// one JSON value in UTF-8 of at most MaxProgress bytes, without the character
// NUL.
func CheckProgress(detail []byte) error {
	switch {
	case len(detail) > MaxProgress:
		return fmt.Errorf("progress has %d bytes, at most %d are allowed: report a summary", len(detail), MaxProgress)
	case !utf8.Valid(detail) || !json.Valid(detail):
		return errors.New("progress is not JSON in UTF-8")
	case hasNUL(detail):
		return errors.New(`progress contains the character NUL (\u0000), which can't be stored`)
	}
	return nil
}

// hasNUL reports whether a string in valid JSON has the escape of NUL. A
// backslash occurs in strings only.
func hasNUL(doc []byte) bool {
	for i := bytes.IndexByte(doc, '\\'); i >= 0 && i < len(doc); i++ {
		if doc[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(doc[i:], []byte(`\u0000`)) {
			return true
		}
		i++
	}
	return false
}
