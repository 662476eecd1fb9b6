package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	// maxListed is how many faults an error text lists.
	maxListed = 3
	// maxText bounds a pointer, a name or an expected value in an error text,
	// in bytes.
	maxText = 120
)

// fault is one place that does not follow the schema.
type fault struct{ at, what string }

func (f fault) String() string { return "at " + f.at + ": " + f.what }

// explain lists what is wrong, in the order of the places. The library's own
// texts are not used because they quote the document's values.
func explain(e *jsonschema.ValidationError) string {
	all := faultsOf(e)
	slices.SortStableFunc(all, func(a, b fault) int {
		return cmp.Or(strings.Compare(a.at, b.at), strings.Compare(a.what, b.what))
	})
	all = slices.Compact(all)
	var parts []string
	for _, f := range all[:min(len(all), maxListed)] {
		parts = append(parts, f.String())
	}
	text := strings.Join(parts, "; ")
	if more := len(all) - maxListed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// faultsOf returns the leaves of the tree of errors. Alternatives of which
// none matches are one fault.
func faultsOf(e *jsonschema.ValidationError) []fault {
	at := pointer(e.InstanceLocation)
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf:
		return []fault{{at, "matches no alternative of anyOf" + alternatives(e)}}
	case *kind.OneOf:
		if len(k.Subschemas) > 1 {
			return []fault{{at, fmt.Sprintf("matches more than one alternative of oneOf: number %d and number %d", k.Subschemas[0]+1, k.Subschemas[1]+1)}}
		}
		return []fault{{at, "matches no alternative of oneOf" + alternatives(e)}}
	case *kind.Contains, *kind.MinContains, *kind.MaxContains: // their causes are the items, each for itself
		return []fault{{at, expected(e.ErrorKind)}}
	case *kind.PropertyNames:
		return []fault{{at, "has a member with a name that is not allowed: " + quote(k.Property)}}
	}
	if len(e.Causes) == 0 {
		return []fault{{at, expected(e.ErrorKind)}}
	}
	var all []fault
	for _, cause := range e.Causes {
		all = append(all, faultsOf(cause)...)
	}
	return all
}

// alternatives gives one reason for each of the first alternatives.
func alternatives(e *jsonschema.ValidationError) string {
	var parts []string
	for _, cause := range e.Causes[:min(len(e.Causes), maxListed)] {
		all := faultsOf(cause)
		first := slices.MinFunc(all, func(a, b fault) int {
			return cmp.Or(strings.Compare(a.at, b.at), strings.Compare(a.what, b.what))
		})
		text := first.what
		if at := pointer(e.InstanceLocation); first.at != at {
			text = first.String()
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, " | ") + ")"
}

// expected says what the schema wants in a place.
func expected(e jsonschema.ErrorKind) string {
	switch k := e.(type) {
	case *kind.Type:
		return fmt.Sprintf("want %s, got %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return "want one of " + values(k.Want...)
	case *kind.Const:
		return "want " + values(k.Want)
	case *kind.Format:
		return "want the format " + k.Want
	case *kind.Required:
		return "lacks " + names(k.Missing)
	case *kind.DependentRequired:
		return "lacks " + names(k.Missing) + ", required beside " + quote(k.Prop)
	case *kind.Dependency:
		return "lacks " + names(k.Missing) + ", required beside " + quote(k.Prop)
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties)
		return "has members that are not allowed: " + names(k.Properties)
	case *kind.AdditionalItems:
		return fmt.Sprintf("has %d items too many", k.Count)
	case *kind.UniqueItems:
		return fmt.Sprintf("has equal items: %d and %d", k.Duplicates[0], k.Duplicates[1])
	case *kind.FalseSchema:
		return "is not allowed"
	case *kind.Not:
		return "matches what the schema excludes (not)"
	default:
		return bound(e)
	}
}

// bound says which bound a value is out of.
func bound(e jsonschema.ErrorKind) string {
	switch k := e.(type) {
	case *kind.Minimum:
		return "want at least " + number(k.Want)
	case *kind.Maximum:
		return "want at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "want more than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "want less than " + number(k.Want)
	case *kind.MultipleOf:
		return "want a multiple of " + number(k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("want at least %d characters, got %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("want at most %d characters, got %d", k.Want, k.Got)
	case *kind.Pattern:
		return "want the pattern " + clip(k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("want at least %d items, got %d", k.Want, k.Got)
	case *kind.MaxItems:
		return fmt.Sprintf("want at most %d items, got %d", k.Want, k.Got)
	case *kind.MinProperties:
		return fmt.Sprintf("want at least %d members, got %d", k.Want, k.Got)
	case *kind.MaxProperties:
		return fmt.Sprintf("want at most %d members, got %d", k.Want, k.Got)
	case *kind.Contains:
		return "has no item that contains asks for"
	case *kind.MinContains:
		return fmt.Sprintf("want at least %d items that contains asks for, got %d", k.Want, len(k.Got))
	case *kind.MaxContains:
		return fmt.Sprintf("want at most %d items that contains asks for, got %d", k.Want, len(k.Got))
	}
	if e == nil || len(e.KeywordPath()) == 0 {
		return "does not follow the schema"
	}
	return "does not follow " + strings.Join(e.KeywordPath(), "/")
}

// pointer is a JSON Pointer (RFC 6901); the whole document is "/", although
// that is "" by the book, so that it can be seen.
func pointer(path []string) string {
	if len(path) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, name := range path {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return clip(strings.Map(printable, b.String()))
}

// printable replaces line breaks and other control characters.
func printable(r rune) rune {
	if r < ' ' || r >= 0x7f && r < 0xa0 {
		return '\uFFFD'
	}
	return r
}

func number(r *big.Rat) string {
	if r.IsInt() {
		return clip(r.Num().String())
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}

func values(vs ...any) string {
	var parts []string
	for _, v := range vs {
		b, _ := json.Marshal(v) // it came from JSON
		parts = append(parts, string(b))
	}
	return clip(strings.Join(parts, ", "))
}

func names(all []string) string {
	var parts []string
	for _, s := range all[:min(len(all), maxListed)] {
		parts = append(parts, quote(s))
	}
	text := strings.Join(parts, ", ")
	if more := len(all) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func quote(s string) string { return fmt.Sprintf("%q", clip(s)) }

// clip bounds a text and cuts no rune in half.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
