package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Kinds of values, as Key.Type names them.
const (
	typeString   = "string"
	typeInt      = "integer"
	typeBool     = "boolean"
	typeDuration = "duration"
	typeList     = "list"
	typeMap      = "map"
	// typeDurations is a list whose items are durations.
	typeDurations = "durations"
)

// envPrefix starts the name of every environment variable of Penstock.
const envPrefix = "PENSTOCK_"

// Key describes one setting.
type Key struct {
	// Name is the dotted key, e.g. "server.listen".
	Name string
	// Type is string, integer, boolean, duration, list, durations or map. A
	// list is written with commas where it must be one string. A map can be set
	// in a file only.
	Type string
	// Default is the value in the struct that was walked, as Print shows it;
	// empty if that is unset.
	Default string
	// Inherits is the key whose value is taken where this one is unset, or "".
	Inherits string
	// Allowed describes the bounds or the allowed strings; empty: any.
	Allowed string
	// Doc is one or more sentences.
	Doc string
	// Secret says that the value must not be shown.
	Secret bool
	// Env is the environment variable, e.g. "PENSTOCK_SERVER_LISTEN"; empty for
	// a map.
	Env string
	// Flag is the flag without dashes in front, e.g. "server-listen"; empty for
	// a map.
	Flag string

	index []int
	rule  rule
}

// Keys lists the settings of cfg, a configuration struct or a pointer to one,
// in the order of its fields. It panics if cfg is of another type or has a
// malformed tag: that is a mistake in the program.
func Keys(cfg any) []Key {
	return walk(structOf(cfg), "", nil)
}

// HandlerKeys lists the keys of one entry of a worker's handlers.
func HandlerKeys() []Key { return entryKeys(Handler{}) }

// TypeKeys lists the keys of one entry of an orchestrator's types.
func TypeKeys() []Key { return entryKeys(Type{}) }

// entryKeys lists the keys of an entry of a map: file only.
func entryKeys(entry any) []Key {
	keys := Keys(entry)
	for i := range keys {
		keys[i].Env, keys[i].Flag = "", ""
	}
	return keys
}

// structOf returns the struct that cfg is or points to.
func structOf(cfg any) reflect.Value {
	v := reflect.ValueOf(cfg)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: %T is no configuration struct", cfg))
	}
	return v
}

func walk(v reflect.Value, prefix string, index []int) []Key {
	var keys []Key
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag := field.Tag.Get("mapstructure")
		if tag == "" {
			continue
		}
		name := tag
		if prefix != "" {
			name = prefix + "." + tag
		}
		path := append(append([]int(nil), index...), i)
		if field.Type.Kind() == reflect.Struct {
			keys = append(keys, walk(v.Field(i), name, path)...)
			continue
		}
		keys = append(keys, newKey(name, path, field, v.Field(i)))
	}
	return keys
}

func newKey(name string, index []int, field reflect.StructField, v reflect.Value) Key {
	k := Key{
		Name:     name,
		Type:     typeOf(field.Type),
		Doc:      field.Tag.Get("doc"),
		Secret:   field.Tag.Get("secret") == "true",
		Inherits: field.Tag.Get("inherits"),
		index:    index,
	}
	k.rule = newRule(name, k.Type, field.Tag)
	k.Allowed = k.rule.String()
	k.Default = valueText(plain(v, k.Secret))
	if k.Type != typeMap {
		k.Env = envName(name)
		k.Flag = flagName(name)
	}
	return k
}

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func flagName(key string) string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(key)
}

var (
	durationType  = reflect.TypeFor[time.Duration]()
	durationsType = reflect.TypeFor[[]time.Duration]()
)

func typeOf(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return typeOf(t.Elem())
	case t == durationType:
		return typeDuration
	case t == durationsType:
		return typeDurations
	case t.Kind() == reflect.String:
		return typeString
	case t.Kind() == reflect.Int:
		return typeInt
	case t.Kind() == reflect.Bool:
		return typeBool
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return typeList
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return typeMap
	default:
		panic(fmt.Sprintf("config: settings of type %s are not supported", t))
	}
}

// rule is what the tags min, max, zero and oneof say of a value.
type rule struct {
	duration bool
	bounded  bool
	min, max int64
	zero     bool
	oneOf    []string
}

func newRule(name, typ string, tag reflect.StructTag) rule {
	r := rule{duration: typ == typeDuration || typ == typeDurations, zero: tag.Get("zero") == "true"}
	if list := tag.Get("oneof"); list != "" {
		r.oneOf = strings.Split(list, ",")
	}
	lo, hi := tag.Get("min"), tag.Get("max")
	if lo == "" && hi == "" {
		return r
	}
	r.bounded = true
	var err error
	for _, b := range []struct {
		text string
		to   *int64
	}{{lo, &r.min}, {hi, &r.max}} {
		if r.duration {
			var d time.Duration
			d, err = time.ParseDuration(b.text)
			*b.to = int64(d)
		} else {
			*b.to, err = strconv.ParseInt(b.text, 10, 64)
		}
		if err != nil {
			panic(fmt.Sprintf("config: bounds of %s: %v", name, err))
		}
	}
	return r
}

// check returns what is wrong with v, or "". A nil pointer is unset; of a list
// every item is checked.
func (r rule) check(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return ""
	case v.Kind() == reflect.Pointer:
		return r.check(v.Elem())
	case v.Kind() == reflect.Slice && r.bounded:
		for i := range v.Len() {
			if msg := r.check(v.Index(i)); msg != "" {
				return "each " + msg
			}
		}
		return ""
	}
	if r.oneOf != nil {
		if r.zero && v.String() == "" {
			return ""
		}
		for _, s := range r.oneOf {
			if v.String() == s {
				return ""
			}
		}
		return fmt.Sprintf("must be %s, got %q", r, v.String())
	}
	if !r.bounded {
		return ""
	}
	n := v.Int()
	or := ""
	if r.zero {
		if n == 0 {
			return ""
		}
		or = "0 or "
	}
	switch {
	case n < r.min:
		return fmt.Sprintf("must be %sat least %s, got %s", or, r.text(r.min), r.text(n))
	case n > r.max:
		return fmt.Sprintf("must be at most %s, got %s", r.text(r.max), r.text(n))
	}
	return ""
}

// String describes the rule for people, e.g. "1 to 1000" or "auto, text or json".
func (r rule) String() string {
	switch {
	case len(r.oneOf) > 1:
		last := len(r.oneOf) - 1
		return strings.Join(r.oneOf[:last], ", ") + " or " + r.oneOf[last]
	case r.bounded && r.zero:
		return "0, or " + r.text(r.min) + " to " + r.text(r.max)
	case r.bounded:
		return r.text(r.min) + " to " + r.text(r.max)
	}
	return ""
}

func (r rule) text(n int64) string {
	if r.duration {
		return durationText(time.Duration(n))
	}
	return strconv.FormatInt(n, 10)
}

// durationText is Duration.String without units that are zero at its end:
// "5m", not "5m0s".
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
