package rpc

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// buildFactor bounds the memory that a decoded request takes beside its text:
	// so many times the most bytes that it may have.
	buildFactor = 2
	// alwaysFits is the length below which no message can exceed the budget of the
	// least limit: two bytes of protobuf build at most one message.
	alwaysFits = 8 << 10
	// maxNesting is the deepest nesting of messages. None of the services' own
	// comes near.
	maxNesting = 64
	// scalarBytes is what one value takes that is no message.
	scalarBytes = 24
	// unknownSize is taken for a message whose Go type is not known.
	unknownSize = 512
)

// batchRequest has a limit of its own.
var batchRequest = (*penstockv1.EnqueueBatchRequest)(nil).ProtoReflect().Descriptor()

// limits bound requests by their bytes, after decompression.
type limits struct{ batch, message int }

// of returns the limit of one kind of request.
func (l limits) of(md protoreflect.MessageDescriptor) int {
	if md == batchRequest {
		return l.batch
	}
	return l.message
}

// budget counts the memory that a message will take, before any of it is built:
// a few bytes can ask for a hundred times as many. The zero budget is unlimited.
type budget struct{ limit, spent int }

func (l limits) budgetOf(md protoreflect.MessageDescriptor) budget {
	return budget{limit: buildFactor * max(l.of(md), 1<<20)}
}

// spend reports an error once the message takes more than its budget.
func (b *budget) spend(n int) *inputError {
	if b.spent += n; b.limit > 0 && b.spent > b.limit {
		return &inputError{message: fmt.Sprintf("the message holds so many items that it would take more than %d bytes of memory; send fewer in one request", b.limit)}
	}
	return nil
}

// checkWire walks over a protobuf message as it is on the wire. What is malformed
// is left to the decoder to refuse.
func (b *budget) checkWire(md protoreflect.MessageDescriptor, data []byte, depth int) *inputError {
	if depth > maxNesting {
		return &inputError{message: fmt.Sprintf("bad protobuf: nested deeper than %d levels", maxNesting)}
	}
	fds := md.Fields()
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(number, kind, data)
		if size < 0 {
			return nil
		}
		value := data[:size]
		data = data[size:]
		fd := fds.ByNumber(number)
		if fd == nil {
			continue // kept as it is
		}
		if err := b.checkField(fd, kind, value, depth); err != nil {
			return err
		}
	}
	return nil
}

func (b *budget) checkField(fd protoreflect.FieldDescriptor, kind protowire.Type, value []byte, depth int) *inputError {
	if kind != protowire.BytesType {
		if fd.IsList() {
			return b.spend(scalarBytes)
		}
		return nil
	}
	inner, n := protowire.ConsumeBytes(value)
	if n < 0 {
		return nil
	}
	sub := fd.Message() // of a map: its entries' type
	switch {
	case sub != nil:
		if err := b.spend(sizeOf(sub)); err != nil {
			return err.under(fd.TextName())
		}
		return b.checkWire(sub, inner, depth+1)
	case !fd.IsList():
		return nil
	case fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind:
		return b.spend(scalarBytes)
	default: // packed: each takes a byte at least, and becomes eight at most
		return b.spend(8 * len(inner))
	}
}

// sizeOf is what an empty message takes, with the place that refers to it.
func sizeOf(md protoreflect.MessageDescriptor) int {
	if n, ok := sizes[md.FullName()]; ok {
		return n
	}
	return unknownSize
}

// sizes are those of the services' messages and of what these hold.
var sizes = func() map[protoreflect.FullName]int {
	all := map[protoreflect.FullName]int{}
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if t := reflect.TypeOf(mt.Zero().Interface()); t.Kind() == reflect.Pointer {
			all[mt.Descriptor().FullName()] = int(t.Elem().Size()) + 16
		}
		return true
	})
	return all
}()
