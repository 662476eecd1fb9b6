package rpc

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"regexp"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// inputError says what is wrong with a request that cannot be decoded.
type inputError struct {
	// field is the path of the wrong field, e.g. tasks[3].timeout_ms.
	field   string
	message string
}

func (e *inputError) Error() string {
	if e.field == "" {
		return e.message
	}
	return e.field + ": " + e.message
}

// under prefixes the path with an outer field.
func (e *inputError) under(outer string) *inputError {
	switch {
	case e.field == "":
		e.field = outer
	case e.field[0] == '[':
		e.field = outer + e.field
	default:
		e.field = outer + "." + e.field
	}
	return e
}

// unmarshalOptions refuse unknown fields.
var unmarshalOptions = protojson.UnmarshalOptions{RecursionLimit: maxDepth}

// unmarshalJSON decodes one message, the inverse of marshalJSON; it accepts
// snake_case and lowerCamelCase names and 64-bit integers as numbers or
// strings. A raw_json member becomes its own text without the white space
// around it; null becomes the empty value. Repeated or unknown members, text
// after the message, and invalid UTF-8 are refused, as is a message that would
// take more memory than b allows, before it is built. m is overwritten.
func unMarshalJSON(data []byte, m proto.Message, b budget) *inputError {
	if len(bytes.TrimSpace(data)) == 0 {
		return &inputError{message: "the message is empty; send a JSON object"}
	}
	if !utf8.Valid(data) {
		return &inputError{message: "the message is not valid UTF-8"}
	}
	md := m.ProtoReflect().Descriptor()
	p, err := planFor(md)
	if err != nil {
		return &inputError{message: err.Error()}
	}
	d := decoder{scanner: scanner{data: data, budget: b}}
	if p.raw || len(data) > alwaysFits {
		if err := d.extract(p); err != nil {
			return err
		}
		data = d.text()
	}
	if err := unmarshalOptions.Unmarshal(data, m); err != nil {
		if found := locate(data, m.ProtoReflect().Type()); found != nil {
			return found
		}
		return &inputError{message: cleanMessage(err)}
	}
	if len(d.raws) > 0 {
		d.fill(m.ProtoReflect(), p)
	}
	return nil
}

// decoder replaces the text of raw_json members by placeholders, the base64 of
// an index into raws, before protojson sees the message, and puts the text in
// their place afterwards. No raw text passes through base64.
type decoder struct {
	scanner

	raws [][]byte
	out  []byte
	last int // data[:last] is in out

	depth int // of object
}

// extract walks over the whole message.
func (d *decoder) extract(p *plan) *inputError {
	if err := d.object(p); err != nil {
		return err
	}
	return d.end()
}

// text returns the message with placeholders.
func (d *decoder) text() []byte {
	if d.last == 0 {
		return d.data
	}
	return append(d.out, d.data[d.last:]...)
}

// object walks over one object of the type of p.
func (d *decoder) object(p *plan) *inputError {
	if d.depth++; d.depth > maxDepth {
		return d.errorf("nested deeper than %d levels", maxDepth)
	}
	defer func() { d.depth-- }()
	if err := d.spend(p.size); err != nil {
		return err
	}
	seen := make([]bool, len(p.fields))
	return d.members(func(name string) *inputError {
		f := p.byName[name]
		switch {
		case f == nil:
			return (&inputError{message: "there is no such field"}).under(name)
		case seen[f.index]:
			return (&inputError{message: "the field is given twice"}).under(f.fd.TextName())
		}
		seen[f.index] = true
		if err := d.member(f); err != nil {
			return err.under(f.fd.TextName())
		}
		return nil
	})
}

// members calls visit at the value of each member of an object; visit consumes
// the value.
func (d *decoder) members(visit func(name string) *inputError) *inputError {
	if err := d.expect('{'); err != nil {
		return err
	}
	if d.peek() == '}' {
		d.pos++
		return nil
	}
	for {
		name, err := d.name()
		if err != nil {
			return err
		}
		if err := visit(name); err != nil {
			return err
		}
		if d.peek() != ',' {
			return d.expect('}')
		}
		d.pos++
	}
}

// elements calls visit at each element of an array.
func (d *decoder) elements(visit func() *inputError) *inputError {
	if err := d.expect('['); err != nil {
		return err
	}
	if d.peek() == ']' {
		d.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := visit(); err != nil {
			return err.under("[" + strconv.Itoa(i) + "]")
		}
		if d.peek() != ',' {
			return d.expect(']')
		}
		d.pos++
	}
}

// member walks over the value of a field.
func (d *decoder) member(f *field) *inputError {
	descend := f.sub != nil && f.sub.raw
	c := d.peek()
	switch {
	case !f.raw && !descend, c == 'n':
		return d.skip() // null: as if it were not there
	case f.raw && !f.fd.IsList():
		return d.replace()
	case f.raw:
		return d.elements(d.replace)
	case f.fd.IsMap() && c == '{':
		return d.members(func(key string) *inputError {
			if err := d.nested(f.sub); err != nil {
				return err.under("[" + strconv.Quote(key) + "]")
			}
			return nil
		})
	case f.fd.IsList() && c == '[':
		return d.elements(func() *inputError { return d.nested(f.sub) })
	default:
		return d.nested(f.sub)
	}
}

// nested walks over a message inside a message; protojson refuses what is not
// an object.
func (d *decoder) nested(p *plan) *inputError {
	if d.peek() != '{' {
		return d.skip()
	}
	return d.object(p)
}

// replace takes one raw value out of the text.
func (d *decoder) replace() *inputError {
	saved := d.budget
	d.budget = budget{} // it stays text, whatever it holds
	raw, err := d.value()
	d.budget = saved
	if err != nil {
		return err
	}
	if err := d.spend(3 * scalarBytes); err != nil {
		return err
	}
	start := d.pos - len(raw)
	if string(raw) == "null" {
		raw = nil
	}
	var index [4]byte
	binary.BigEndian.PutUint32(index[:], uint32(len(d.raws)))
	d.raws = append(d.raws, raw)
	d.out = append(d.out, d.data[d.last:start]...)
	d.out = append(d.out, '"')
	d.out = base64.StdEncoding.AppendEncode(d.out, index[:])
	d.out = append(d.out, '"')
	d.last = d.pos
	return nil
}

// fill puts the raw texts in place of their placeholders. It copies them, as
// the decoded data belongs to the caller.
func (d *decoder) fill(m protoreflect.Message, p *plan) {
	for i := range p.fields {
		f := &p.fields[i]
		if !f.raw && (f.sub == nil || !f.sub.raw) || !m.Has(f.fd) {
			continue
		}
		switch {
		case f.raw && f.fd.IsList():
			list := m.Mutable(f.fd).List()
			for j := range list.Len() {
				list.Set(j, d.take(list.Get(j)))
			}
		case f.raw:
			m.Set(f.fd, d.take(m.Get(f.fd)))
		case f.fd.IsMap():
			m.Mutable(f.fd).Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				d.fill(v.Message(), f.sub)
				return true
			})
		case f.fd.IsList():
			list := m.Mutable(f.fd).List()
			for j := range list.Len() {
				d.fill(list.Get(j).Message(), f.sub)
			}
		default:
			d.fill(m.Mutable(f.fd).Message(), f.sub)
		}
	}
}

// take returns a copy of the text that a placeholder stands for.
func (d *decoder) take(placeholder protoreflect.Value) protoreflect.Value {
	raw := d.raws[binary.BigEndian.Uint32(placeholder.Bytes())]
	return protoreflect.ValueOfBytes(bytes.Clone(raw))
}

// protojsonPrefix is what protojson puts before its messages: its name, at
// times with a no-break space, and a position in text that the caller may not
// have sent.
var protojsonPrefix = regexp.MustCompile(`^proto:[\s\x{a0}]*(?:syntax error )?(?:\(line \d+:\d+\): )?`)

// cleanMessage returns the text of a protojson error without its prefix.
func cleanMessage(err error) string {
	return protojsonPrefix.ReplaceAllString(err.Error(), "")
}
