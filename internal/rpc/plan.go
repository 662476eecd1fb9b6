package rpc

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// plan says how the JSON of one message type differs from protojson's.
type plan struct {
	fields []field
	byName map[string]*field // proto and JSON names
	// raw: the message or one inside it has raw_json fields.
	raw bool
	// wide: the message or one inside it has 64-bit integers.
	wide bool
	// size is what an empty message takes, in bytes.
	size int
}

// special reports whether protojson alone would not do.
func (p *plan) special() bool { return p.raw || p.wide }

// field is one field of a planned message.
type field struct {
	fd    protoreflect.FieldDescriptor
	index int
	// name is the quoted member name with its colon.
	name string
	// raw: bytes, single or repeated, that hold JSON text.
	raw bool
	// wrapper: google.protobuf.Int64Value or UInt64Value.
	wrapper bool
	// absent: the list that holds the message does not carry the field.
	absent bool
	// sub is the plan of the message, the list element or the map value if
	// that is special.
	sub *plan
}

// plans caches a *plan for each protoreflect.MessageDescriptor.
var plans sync.Map

// planFor returns the plan of a message type. It fails if the type misuses the
// raw_json option.
func planFor(md protoreflect.MessageDescriptor) (*plan, error) {
	if p, ok := plans.Load(md); ok {
		return p.(*plan), nil
	}
	built := map[protoreflect.FullName]*plan{}
	p, err := buildPlan(md, built)
	if err != nil {
		return nil, err
	}
	plans.Store(md, p)
	return p, nil
}

// buildPlan makes the plan of md and of every special message inside it;
// built breaks cycles.
func buildPlan(md protoreflect.MessageDescriptor, built map[protoreflect.FullName]*plan) (*plan, error) {
	if p, ok := built[md.FullName()]; ok {
		return p, nil
	}
	p := &plan{byName: map[string]*field{}, size: sizeOf(md)}
	built[md.FullName()] = p
	if isWellKnown(md) {
		return p, nil
	}
	p.raw, p.wide = traits(md, map[protoreflect.FullName]bool{})
	fds := md.Fields()
	p.fields = make([]field, fds.Len())
	for i := range p.fields {
		f := &p.fields[i]
		f.fd, f.index = fds.Get(i), i
		f.name = fmt.Sprintf("%q:", f.fd.TextName())
		f.raw = isRaw(f.fd)
		if f.raw && (f.fd.Kind() != protoreflect.BytesKind || f.fd.IsMap()) {
			return nil, fmt.Errorf("rpc: %s: raw_json needs a bytes field", f.fd.FullName())
		}
		p.byName[f.fd.JSONName()] = f
		p.byName[f.fd.TextName()] = f
		sub := messageOf(f.fd)
		if sub == nil {
			continue
		}
		f.wrapper = isWide(sub)
		subPlan, err := buildPlan(sub, built)
		if err != nil {
			return nil, err
		}
		if subPlan.special() {
			f.sub = subPlan
		}
		if f.sub, err = f.sub.without(f.fd); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// without returns the plan of what a field holds if its option without names
// fields, which are absent then; else p.
func (p *plan) without(fd protoreflect.FieldDescriptor) (*plan, error) {
	names, _ := proto.GetExtension(fd.Options(), penstockv1.E_Without).([]string)
	if len(names) == 0 {
		return p, nil
	}
	if p == nil || len(p.fields) == 0 {
		return nil, fmt.Errorf("rpc: %s: without needs messages that are planned, and not the one that it is in", fd.FullName())
	}
	out, found := *p, 0
	out.fields = slices.Clone(p.fields)
	for i := range out.fields {
		if slices.Contains(names, string(out.fields[i].fd.Name())) {
			out.fields[i].absent = true
			found++
		}
	}
	if found != len(names) {
		return nil, fmt.Errorf("rpc: %s: without names fields %v, not all of which %s has", fd.FullName(), names, messageOf(fd).FullName())
	}
	return &out, nil
}

// traits looks for raw_json fields and 64-bit integers in md and everything it
// can hold.
func traits(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) (raw, wide bool) {
	if seen[md.FullName()] {
		return false, false
	}
	seen[md.FullName()] = true
	if isWellKnown(md) {
		return false, isWide(md)
	}
	fds := md.Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		raw = raw || isRaw(fd)
		if fd.IsMap() {
			wide = wide || is64(fd.MapValue().Kind())
		}
		wide = wide || is64(fd.Kind())
		if sub := messageOf(fd); sub != nil {
			r, w := traits(sub, seen)
			raw, wide = raw || r, wide || w
		}
	}
	return raw, wide
}

// messageOf returns the message type of a field's values, or nil.
func messageOf(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return fd.Message()
}

// isRaw reports whether a field has the option raw_json.
func isRaw(fd protoreflect.FieldDescriptor) bool {
	raw, _ := proto.GetExtension(fd.Options(), penstockv1.E_RawJson).(bool)
	return raw
}

// isWellKnown reports whether protojson has its own form for a type. Messages
// inside google.protobuf.Any keep protojson's form, too.
func isWellKnown(md protoreflect.MessageDescriptor) bool {
	return md.ParentFile().Package() == "google.protobuf"
}

// isWide reports whether a type is a wrapper of a 64-bit integer.
func isWide(md protoreflect.MessageDescriptor) bool {
	name := md.FullName()
	return name == "google.protobuf.Int64Value" || name == "google.protobuf.UInt64Value"
}

// is64 reports whether protojson would write a kind as a quoted number.
func is64(kind protoreflect.Kind) bool {
	switch kind {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind,
		protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return true
	default:
		return false
	}
}
