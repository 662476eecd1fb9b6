package auth

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// hiddenField tells in a message that content was taken out of it.
const hiddenField = "content_hidden"

// hideContent takes the content of tasks out of a response (option content), and
// says in each message that has content_hidden whether there was any.
func hideContent(m protoreflect.Message) {
	if e, ok := m.Interface().(*penstockv1.Event); ok {
		hideEventContent(e)
		return
	}
	hidden := false
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isContent(f):
			m.Clear(f)
			hidden = true
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				hideContent(v.List().Get(i).Message())
			}
		default:
			hideContent(v.Message())
		}
		return true
	})
	if f := m.Descriptor().Fields().ByName(hiddenField); hidden && f != nil {
		m.Set(f, protoreflect.ValueOfBool(true))
	}
}

func isContent(f protoreflect.FieldDescriptor) bool {
	content, _ := proto.GetExtension(f.Options(), penstockv1.E_Content).(bool)
	return content
}

// hideEventContent takes out what handlers reported, and how payloads were
// edited; the other details of events are about what happened.
func hideEventContent(e *penstockv1.Event) {
	switch protocol.EventType(e.Type) {
	case protocol.EventProgress:
		e.Data, e.ContentHidden = nil, true
	case protocol.EventDLQRequeued:
		var members map[string]json.RawMessage
		if json.Unmarshal(e.Data, &members) != nil || members["diff"] == nil {
			return
		}
		delete(members, "diff")
		if data, err := json.Marshal(members); err == nil {
			e.Data, e.ContentHidden = data, true
		}
	}
}
