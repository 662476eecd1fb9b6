package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change is one difference between two JSON values.
type Change struct {
	// Op is add, remove or replace.
	Op string `json:"op"`
	// Path is a JSON pointer (RFC 6901).
	Path string `json:"path"`
	// From and To are the values before and after; left out if the difference
	// would become too large with them.
	From json.RawMessage `json:"from,omitempty"`
	To   json.RawMessage `json:"to,omitempty"`
}

// Bounds of a difference, which goes into an event.
const (
	maxDiffBytes   = 16 << 10
	maxDiffChanges = 200
	maxPath        = 48 // of a difference whose values were left out
)

// Diff lists the differences between two JSON values as a JSON array of
// Change, in the order of their paths. Members and elements are compared one by
// one, numbers as they are written. A long list is cut and a last change with
// op "more" counts the rest.
func Diff(from, to []byte) (json.RawMessage, error) {
	a, err := decode(from)
	if err != nil {
		return nil, err
	}
	b, err := decode(to)
	if err != nil {
		return nil, err
	}
	changes := diff(nil, "", a, b)
	if n := len(changes); n > maxDiffChanges {
		changes = append(changes[:maxDiffChanges], Change{Op: "more", Path: "", To: json.RawMessage(fmt.Sprint(n - maxDiffChanges))})
	}
	if changes == nil {
		changes = []Change{}
	}
	out, err := json.Marshal(changes)
	if err != nil || len(out) <= maxDiffBytes {
		return out, err
	}
	for i := range changes {
		if changes[i].Op != "more" {
			changes[i].From, changes[i].To = nil, nil
			changes[i].Path = clip(changes[i].Path)
		}
	}
	return json.Marshal(changes)
}

// clip shortens a path to maxPath bytes.
func clip(path string) string {
	if len(path) <= maxPath {
		return path
	}
	return strings.ToValidUTF8(path[:maxPath], "") + "…"
}

func decode(b []byte) (any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

func diff(out []Change, path string, a, b any) []Change {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			return diffObjects(out, path, x, y)
		}
	case []any:
		if y, ok := b.([]any); ok {
			return diffArrays(out, path, x, y)
		}
	default:
		if _, object := b.(map[string]any); !object {
			if _, array := b.([]any); !array && a == b {
				return out
			}
		}
	}
	return append(out, Change{"replace", path, text(a), text(b)})
}

func diffObjects(out []Change, path string, a, b map[string]any) []Change {
	keys := slices.Sorted(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		at := path + "/" + escape.Replace(k)
		x, old := a[k]
		y, new := b[k]
		switch {
		case !old:
			out = append(out, Change{Op: "add", Path: at, To: text(y)})
		case !new:
			out = append(out, Change{Op: "remove", Path: at, From: text(x)})
		default:
			out = diff(out, at, x, y)
		}
	}
	return out
}

func diffArrays(out []Change, path string, a, b []any) []Change {
	for i := range max(len(a), len(b)) {
		at := fmt.Sprintf("%s/%d", path, i)
		switch {
		case i >= len(a):
			out = append(out, Change{Op: "add", Path: at, To: text(b[i])})
		case i >= len(b):
			out = append(out, Change{Op: "remove", Path: at, From: text(a[i])})
		default:
			out = diff(out, at, a[i], b[i])
		}
	}
	return out
}

func text(v any) json.RawMessage {
	b, _ := json.Marshal(v) // came out of a JSON decoder
	return b
}
