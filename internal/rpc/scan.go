package rpc

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// maxDepth is the deepest nesting of arrays and objects that the scanner
// follows, the same as the limit of protojson and encoding/json.
const maxDepth = 10_000

// objectBytes is taken for what an object becomes whose type is not looked at.
const objectBytes = 192

// scanner walks over JSON text without building values. It checks the grammar
// of RFC 8259; whoever makes one checks beforehand that data is valid UTF-8.
type scanner struct {
	budget

	data []byte
	pos  int
}

// errorf makes an error about the current position.
func (s *scanner) errorf(format string, args ...any) *inputError {
	return &inputError{message: fmt.Sprintf("bad JSON at byte %d: ", s.pos) + fmt.Sprintf(format, args...)}
}

// unexpected reports the byte at the current position.
func (s *scanner) unexpected(want string) *inputError {
	if s.pos >= len(s.data) {
		return s.errorf("it ends where %s should be", want)
	}
	r, _ := utf8.DecodeRune(s.data[s.pos:])
	return s.errorf("found %q where %s should be", r, want)
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// expect consumes c after optional white space.
func (s *scanner) expect(c byte) *inputError {
	if s.peek() != c || s.pos >= len(s.data) {
		return s.unexpected(fmt.Sprintf("%q", rune(c)))
	}
	s.pos++
	return nil
}

// end refuses anything but white space up to the end of the data.
func (s *scanner) end() *inputError {
	if s.peek(); s.pos < len(s.data) {
		return s.unexpected("the end")
	}
	return nil
}

// value consumes one value and returns its text without surrounding space.
func (s *scanner) value() ([]byte, *inputError) {
	s.peek()
	start := s.pos
	if err := s.skip(); err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

// name consumes a member name and the colon after it.
func (s *scanner) name() (string, *inputError) {
	if s.peek() != '"' {
		return "", s.unexpected("a member name")
	}
	start := s.pos
	escaped, err := s.str()
	if err != nil {
		return "", err
	}
	quoted := s.data[start:s.pos]
	if err := s.expect(':'); err != nil {
		return "", err
	}
	if !escaped {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var name string
	if err := json.Unmarshal(quoted, &name); err != nil {
		return "", s.errorf("bad member name")
	}
	return name, nil
}

// skip consumes one value of any kind. It is a loop rather than a recursion,
// so that deep input costs a byte of stack for each level.
func (s *scanner) skip() *inputError {
	var open []byte
	for {
		nested, err := s.begin(&open)
		if err != nil {
			return err
		}
		if nested {
			continue
		}
		if done, err := s.finish(&open); done || err != nil {
			return err
		}
	}
}

// begin consumes a scalar, an empty container, or the start of a container up
// to its first value, in which case it returns true.
func (s *scanner) begin(open *[]byte) (bool, *inputError) {
	c := s.peek()
	cost := scalarBytes
	if c == '{' {
		cost = objectBytes
	}
	if err := s.spend(cost); err != nil {
		return false, err
	}
	switch c {
	case '{', '[':
		s.pos++
		if next := s.peek(); next == c+2 { // '}' and ']' follow their openers by two
			s.pos++
			return false, nil
		}
		if len(*open) >= maxDepth {
			return false, s.errorf("nested deeper than %d levels", maxDepth)
		}
		*open = append(*open, c)
		if c == '{' {
			_, err := s.name()
			return true, err
		}
		return true, nil
	case '"':
		_, err := s.str()
		return false, err
	case 't':
		return false, s.literal("true")
	case 'f':
		return false, s.literal("false")
	case 'n':
		return false, s.literal("null")
	default:
		return false, s.number()
	}
}

// finish follows a complete value: it closes containers as long as they end
// and moves on to the next value of the one that does not. It returns true
// when no container is open.
func (s *scanner) finish(open *[]byte) (bool, *inputError) {
	for {
		if len(*open) == 0 {
			return true, nil
		}
		top := (*open)[len(*open)-1]
		switch c := s.peek(); c {
		case ',':
			s.pos++
			if top == '{' {
				_, err := s.name()
				return false, err
			}
			return false, nil
		case top + 2:
			s.pos++
			*open = (*open)[:len(*open)-1]
		default:
			return false, s.unexpected(fmt.Sprintf("',' or %q", rune(top+2)))
		}
	}
}

// literal consumes one of the words of JSON.
func (s *scanner) literal(word string) *inputError {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.unexpected("a value")
	}
	s.pos += len(word)
	return nil
}

// str consumes a string and tells whether it holds escapes.
func (s *scanner) str() (escaped bool, err *inputError) {
	s.pos++
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return escaped, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return escaped, err
			}
		case c < 0x20:
			return escaped, s.errorf("control character %#02x in a string", c)
		default:
			s.pos++
		}
	}
	return escaped, s.unexpected("the end of a string")
}

// escape consumes one escape sequence.
func (s *scanner) escape() *inputError {
	s.pos++
	if s.pos >= len(s.data) {
		return s.unexpected("an escape")
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		s.pos++
		for range 4 {
			if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
				return s.unexpected("a hexadecimal digit")
			}
			s.pos++
		}
		return nil
	default:
		return s.unexpected("an escape")
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// number consumes a number.
func (s *scanner) number() *inputError {
	if s.at() == '-' {
		s.pos++
	}
	switch c := s.at(); {
	case c == '0':
		s.pos++
	case c >= '1' && c <= '9':
		s.digits()
	default:
		return s.unexpected("a value")
	}
	if s.at() == '.' {
		s.pos++
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	if c := s.at(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.at(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	return nil
}

// digits consumes digits and tells whether there were any.
func (s *scanner) digits() bool {
	start := s.pos
	for c := s.at(); c >= '0' && c <= '9'; c = s.at() {
		s.pos++
	}
	return s.pos > start
}

// at returns the byte at the current position, 0 at the end.
func (s *scanner) at() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// validRaw reports why raw is not one JSON value in valid UTF-8.
func validRaw(raw []byte) *inputError {
	if !utf8.Valid(raw) {
		return &inputError{message: "it is not valid UTF-8"}
	}
	s := scanner{data: raw}
	if err := s.skip(); err != nil {
		return err
	}
	return s.end()
}
