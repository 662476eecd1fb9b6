package rpc

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/protocol"
)

// Names of the codecs, as they appear in content types. Connect treats the
// charset variant as a codec of its own.
const (
	codecProto       = "proto"
	codecJSON        = "json"
	codecJSONCharset = "json; charset=utf-8"
)

// codecOptions returns the options that make a Connect handler use the codecs
// of this package. Only handlers with an interceptor of this package may use
// them: see markInvalid.
func codecOptions(log *slog.Logger, l limits) connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(protoCodec{l}),
		connect.WithCodec(jsonCodec{name: codecJSON, log: log, limits: l}),
		connect.WithCodec(jsonCodec{name: codecJSONCharset, log: log, limits: l}),
	)
}

// protoCodec is binary protobuf for Connect handlers.
type protoCodec struct{ limits limits }

func (protoCodec) Name() string   { return codecProto }
func (protoCodec) IsBinary() bool { return true }

func (c protoCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

func (protoCodec) MarshalAppend(b []byte, v any) ([]byte, error) {
	m, err := asMessage(v)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

// Unmarshal decodes a message; see markInvalid for what it does when it cannot.
func (c protoCodec) Unmarshal(data []byte, v any) error {
	m, err := asMessage(v)
	if err != nil {
		return err
	}
	if len(data) > alwaysFits {
		md := m.ProtoReflect().Descriptor()
		b := c.limits.budgetOf(md)
		if err := b.checkWire(md, data, 0); err != nil {
			return markInvalid(m, err)
		}
	}
	if err := (proto.UnmarshalOptions{RecursionLimit: maxNesting}).Unmarshal(data, m); err != nil {
		return markInvalid(m, &inputError{message: "bad protobuf: " + cleanMessage(err)})
	}
	return nil
}

// jsonCodec is JSON for Connect handlers, with and without REST before them.
type jsonCodec struct {
	name   string
	log    *slog.Logger
	limits limits
}

func (c jsonCodec) Name() string   { return c.name }
func (c jsonCodec) IsBinary() bool { return false }

func (c jsonCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

// MarshalAppend encodes a response. Failing means that stored data is damaged;
// no interceptor sees that, so it is logged here.
func (c jsonCodec) MarshalAppend(b []byte, v any) ([]byte, error) {
	m, err := asMessage(v)
	if err != nil {
		return nil, err
	}
	b, err = MarshalJSON(b, m)
	if err != nil {
		c.log.LogAttrs(context.Background(), slog.LevelError, "rpc: response cannot be encoded as JSON",
			slog.String("message", string(m.ProtoReflect().Descriptor().FullName())), slog.Any("error", err))
	}
	return b, err
}

// Unmarshal decodes a message; see markInvalid for what it does when it cannot.
func (c jsonCodec) Unmarshal(data []byte, v any) error {
	m, err := asMessage(v)
	if err != nil {
		return err
	}
	if err := unMarshalJSON(data, m, c.limits.budgetOf(m.ProtoReflect().Descriptor())); err != nil {
		return markInvalid(m, err)
	}
	return nil
}

// asMessage returns v as a message.
func asMessage(v any) (proto.Message, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("rpc: %T is not a protobuf message", v)
	}
	return m, nil
}

// Field numbers of the mark of an undecodable message: the two largest.
const (
	markNonce protowire.Number = protowire.MaxValidNumber - 1
	markInfo  protowire.Number = protowire.MaxValidNumber
)

// markPrefix begins the unknown fields of a marked message. It holds a random
// number, so that no caller can send a message that looks marked.
var markPrefix = func() []byte {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	b := protowire.AppendTag(nil, markNonce, protowire.BytesType)
	return protowire.AppendBytes(b, nonce)
}()

// markInvalid empties m and notes in its unknown fields why it could not be
// decoded. Connect gives an error of a codec to the caller without passing it
// to any interceptor, and without details; with the mark, decoding succeeds and
// the interceptor refuses the request with a complete error before the service
// sees it.
func markInvalid(m proto.Message, why *inputError) error {
	proto.Reset(m)
	info, err := proto.Marshal(infoOf(invalidInput(why)))
	if err != nil {
		return why
	}
	mark := protowire.AppendTag(bytes.Clone(markPrefix), markInfo, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(mark, info))
	return nil
}

// markedInvalid returns the error that markInvalid noted, if it did.
func markedInvalid(v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return nil
	}
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	rest, ok := bytes.CutPrefix(unknown, markPrefix)
	if !ok {
		return nil
	}
	_, _, n := protowire.ConsumeTag(rest)
	if n < 0 {
		return nil
	}
	data, n := protowire.ConsumeBytes(rest[n:])
	if n < 0 {
		return nil
	}
	return decodeMark(data)
}

// invalidInput returns the contract's error for a message that cannot be
// decoded.
func invalidInput(why *inputError) *protocol.Error {
	return protocol.Errorf(protocol.CodeInputInvalid, why.field, "%s", why.message)
}

// restCodec is JSON for the transcoder. It never meets a message with a mark,
// so it reports errors as they are.
type restCodec struct{ limits limits }

var _ vanguard.RESTCodec = restCodec{}

func (restCodec) Name() string { return codecJSON }

func (restCodec) MarshalAppend(b []byte, m proto.Message) ([]byte, error) { return MarshalJSON(b, m) }

func (c restCodec) Unmarshal(data []byte, m proto.Message) error {
	if err := unMarshalJSON(data, m, c.limits.budgetOf(m.ProtoReflect().Descriptor())); err != nil {
		return ToConnect(invalidInput(err))
	}
	return nil
}

// MarshalAppendField appends the JSON of one field of m.
func (restCodec) MarshalAppendField(b []byte, m proto.Message, fd protoreflect.FieldDescriptor) ([]byte, error) {
	p, err := planFor(fd.ContainingMessage())
	if err != nil {
		return nil, err
	}
	if r := m.ProtoReflect(); r.Has(fd) || !fd.HasPresence() {
		return appendField(b, r.Get(fd), p.byName[fd.TextName()])
	}
	return append(b, "null"...), nil
}

// UnmarshalField sets one field of m to the value in data.
func (c restCodec) UnmarshalField(data []byte, m proto.Message, fd protoreflect.FieldDescriptor) error {
	single := m.ProtoReflect().New()
	text := bytes.Join([][]byte{[]byte(`{"` + fd.TextName() + `":`), data, {'}'}}, nil)
	if err := unMarshalJSON(text, single.Interface(), c.limits.budgetOf(single.Descriptor())); err != nil {
		return ToConnect(invalidInput(err))
	}
	if single.Has(fd) {
		m.ProtoReflect().Set(fd, single.Get(fd))
	} else {
		m.ProtoReflect().Clear(fd)
	}
	return nil
}
