package rpc

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// locate finds the member that makes a message undecodable by decoding each
// one for itself. It returns nil if that does not reproduce the error. It runs
// on the error path only.
func locate(data []byte, mt protoreflect.MessageType) *inputError {
	d := decoder{scanner: scanner{data: data}}
	if d.peek() != '{' {
		return nil
	}
	return d.members(func(name string) *inputError {
		value, err := d.value()
		if err != nil {
			return err
		}
		fds := mt.Descriptor().Fields()
		fd := fds.ByJSONName(name)
		if fd == nil {
			fd = fds.ByTextName(name)
		}
		if fd == nil {
			return (&inputError{message: "there is no such field"}).under(name)
		}
		if found := locateIn(value, mt, fd); found != nil {
			return found.under(fd.TextName())
		}
		return nil
	})
}

// locateIn tells whether value cannot be decoded as the field fd, and where
// inside it.
func locateIn(value []byte, mt protoreflect.MessageType, fd protoreflect.FieldDescriptor) *inputError {
	m := mt.New()
	if tryField(value, m, fd) {
		return nil
	}
	sub := fd.Message()
	if sub == nil && !fd.IsList() || fd.IsMap() || sub != nil && isWellKnown(sub) && !fd.IsList() {
		return notA(fd, value)
	}
	if !fd.IsList() {
		return orElse(locate(value, m.NewField(fd).Message().Type()), fd, value)
	}
	d := decoder{scanner: scanner{data: value}}
	if d.peek() != '[' {
		return notA(fd, value)
	}
	var elementType protoreflect.MessageType
	if sub != nil {
		elementType = m.NewField(fd).List().NewElement().Message().Type()
	}
	return orElse(d.elements(func() *inputError {
		element, err := d.value()
		if err != nil {
			return err
		}
		if tryField(bytes.Join([][]byte{{'['}, element, {']'}}, nil), m, fd) {
			return nil
		}
		if elementType == nil || isWellKnown(sub) {
			return notA(fd, element)
		}
		return orElse(locate(element, elementType), fd, element)
	}), fd, value)
}

// orElse returns err, or that value does not fit fd.
func orElse(err *inputError, fd protoreflect.FieldDescriptor, value []byte) *inputError {
	if err != nil {
		return err
	}
	return notA(fd, value)
}

// tryField tells whether value decodes as the field fd of m's type.
func tryField(value []byte, m protoreflect.Message, fd protoreflect.FieldDescriptor) bool {
	text := bytes.Join([][]byte{[]byte(`{"` + fd.JSONName() + `":`), value, {'}'}}, nil)
	return unmarshalOptions.Unmarshal(text, m.Interface()) == nil
}

// notA says that value does not have the type of fd.
func notA(fd protoreflect.FieldDescriptor, value []byte) *inputError {
	want := fd.Kind().String()
	if md := fd.Message(); md != nil {
		want = "object"
		if isWellKnown(md) {
			want = string(md.Name())
		}
		if md.FullName() == "google.protobuf.Timestamp" {
			want = "RFC 3339 time with an offset, as in 2026-02-25T12:00:00Z"
		}
	}
	// A container may hold a payload, which error texts must not repeat.
	switch value[0] {
	case '{':
		return &inputError{message: "an object is not a valid " + want}
	case '[':
		return &inputError{message: "an array is not a valid " + want}
	}
	const most = 64
	shown := string(value)
	if len(shown) > most {
		cut := most
		for !utf8.RuneStart(shown[cut]) {
			cut--
		}
		shown = shown[:cut] + "…"
	}
	return &inputError{message: fmt.Sprintf("%s is not a valid %s", shown, want)}
}
