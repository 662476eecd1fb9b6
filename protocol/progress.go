package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxProgress is the most bytes of what a handler reports as its progress,
// 4 KiB.
const MaxProgress = 4 << 10

// CheckProgress returns an error if a handler's report can't be stored: it is
// one JSON value in UTF-8 of at most MaxProgress bytes; see CheckEscapes.
func CheckProgress(detail []byte) error {
	switch {
	case len(detail) > MaxProgress:
		return fmt.Errorf("progress has %d bytes, at most %d are allowed: report a summary", len(detail), MaxProgress)
	case !utf8.Valid(detail) || !json.Valid(detail):
		return errors.New("progress is not JSON in UTF-8")
	}
	if err := CheckEscapes(detail); err != nil {
		return fmt.Errorf("progress %w, which can't be stored", err)
	}
	return nil
}
