package rpc

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// marshalOptions are those of all JSON output.
var marshalOptions = protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}

// MarshalJSON appends the JSON of m to b: as protojson would with proto names
// and unpopulated fields, except that 64-bit integers are numbers, raw_json
// fields stand for themselves, and what a list does not carry is absent. It fails if a string is not valid UTF-8 or a
// raw_json field is not one JSON value.
func MarshalJSON(b []byte, m proto.Message) ([]byte, error) {
	p, err := planFor(m.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	return appendMessage(b, m.ProtoReflect(), p)
}

// MarshalItem appends the JSON of a message as an element of the list field of
// such name in a message like in: without what that list does not carry.
func MarshalItem(b []byte, in proto.Message, list string, m proto.Message) ([]byte, error) {
	p, err := planFor(in.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	if f := p.byName[list]; f != nil && f.sub != nil {
		return appendMessage(b, m.ProtoReflect(), f.sub)
	}
	return MarshalJSON(b, m)
}

// appendMessage appends one message that p describes.
func appendMessage(b []byte, m protoreflect.Message, p *plan) ([]byte, error) {
	if !p.special() {
		return marshalOptions.MarshalAppend(b, m.Interface())
	}
	b = append(b, '{')
	first := true
	for i := range p.fields {
		f := &p.fields[i]
		has := m.Has(f.fd)
		if !has && (f.absent || f.fd.ContainingOneof() != nil) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, f.name...)
		if !has && f.fd.HasPresence() {
			b = append(b, "null"...)
			continue
		}
		var err error
		if b, err = appendField(b, m.Get(f.fd), f); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendField appends the value of a field: a list, a map or a single value.
func appendField(b []byte, v protoreflect.Value, f *field) ([]byte, error) {
	switch {
	case f.fd.IsMap():
		return appendMap(b, v.Map(), f)
	case f.fd.IsList():
		list := v.List()
		b = append(b, '[')
		for i := range list.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValue(b, list.Get(i), f.fd, f); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	default:
		return appendValue(b, v, f.fd, f)
	}
}

// appendMap appends a map with its keys in order.
func appendMap(b []byte, m protoreflect.Map, f *field) ([]byte, error) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(x, y protoreflect.MapKey) int { return cmp.Compare(x.String(), y.String()) })
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendString(b, k.String()); err != nil {
			return nil, fmt.Errorf("%s: %w", f.fd.FullName(), err)
		}
		b = append(b, ':')
		if b, err = appendValue(b, m.Get(k), f.fd.MapValue(), f); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendValue appends one value of kind fd that belongs to the field f.
func appendValue(b []byte, v protoreflect.Value, fd protoreflect.FieldDescriptor, f *field) ([]byte, error) {
	switch kind := fd.Kind(); kind {
	case protoreflect.StringKind:
		b, err := appendString(b, v.String())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.fd.FullName(), err)
		}
		return b, nil
	case protoreflect.BytesKind:
		return appendBytes(b, v.Bytes(), f)
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendSub(b, v.Message(), f)
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), nil
	case protoreflect.EnumKind:
		return appendEnum(b, v.Enum(), fd.Enum()), nil
	case protoreflect.FloatKind:
		return appendFloat(b, v.Float(), 32), nil
	case protoreflect.DoubleKind:
		return appendFloat(b, v.Float(), 64), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	default:
		return strconv.AppendInt(b, v.Int(), 10), nil
	}
}

// appendBytes appends base64, or the JSON text of a raw_json field.
func appendBytes(b, v []byte, f *field) ([]byte, error) {
	if !f.raw {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v)
		return append(b, '"'), nil
	}
	if len(v) == 0 {
		return append(b, "null"...), nil
	}
	if err := validRaw(v); err != nil {
		return nil, fmt.Errorf("%s does not hold a JSON value: %w", f.fd.FullName(), err)
	}
	return append(b, v...), nil
}

// appendSub appends a message inside a message.
func appendSub(b []byte, m protoreflect.Message, f *field) ([]byte, error) {
	switch {
	case f.sub != nil:
		return appendMessage(b, m, f.sub)
	case f.wrapper:
		value := m.Descriptor().Fields().ByNumber(1)
		return appendValue(b, m.Get(value), value, f)
	default:
		return marshalOptions.MarshalAppend(b, m.Interface())
	}
}

// appendEnum appends the name of an enum value, or its number if it has none.
func appendEnum(b []byte, n protoreflect.EnumNumber, ed protoreflect.EnumDescriptor) []byte {
	if ed.FullName() == "google.protobuf.NullValue" {
		return append(b, "null"...)
	}
	if v := ed.Values().ByNumber(n); v != nil {
		b = append(b, '"')
		b = append(b, v.Name()...)
		return append(b, '"')
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// appendFloat appends a number, or the strings that protobuf's JSON uses for
// what JSON cannot write.
func appendFloat(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Infinity"`...)
	default:
		return strconv.AppendFloat(b, v, 'g', -1, bits)
	}
}

// appendString appends a JSON string. It fails if s is not valid UTF-8.
func appendString(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("the string is not valid UTF-8")
	}
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"'), nil
}
