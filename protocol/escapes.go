package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf16"
)

// CheckEscapes returns an error if a valid JSON text has an escape that stands for
// no character that can be kept: NUL (\u0000), which Postgres has not, and half a
// surrogate pair (\ud800), which UTF-8 has not, so that readers disagree about it.
// Payloads, results, progress and what effects return follow this one rule.
func CheckEscapes(doc []byte) error {
	for i := bytes.IndexByte(doc, '\\'); i >= 0 && i < len(doc); i++ { // a backslash occurs in strings only
		if doc[i] != '\\' {
			continue
		}
		i++
		if i+4 >= len(doc) || doc[i] != 'u' {
			continue
		}
		r := hexRune(doc[i+1:])
		i += 4
		switch {
		case r == 0:
			return errors.New(`contains the character NUL (\u0000)`)
		case utf16.IsSurrogate(r):
			rest := doc[i+1:]
			if len(rest) < 6 || !bytes.HasPrefix(rest, []byte(`\u`)) || utf16.DecodeRune(r, hexRune(rest[2:])) == unicode.ReplacementChar {
				return fmt.Errorf(`contains half a surrogate pair, \u%04x`, r)
			}
			i += 6
		}
	}
	return nil
}

// hexRune is the value of the four hex digits that b begins with.
func hexRune(b []byte) rune {
	n, _ := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n)
}
