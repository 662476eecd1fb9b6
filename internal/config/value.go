package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setValue stores raw, a value from a file, the environment or a flag, in dst.
// It never guesses: a number is no string and no duration. Faults are named
// by key and do not repeat a secret.
func setValue(f *faults, key string, dst reflect.Value, raw any, secret bool) {
	if raw == nil {
		return
	}
	want, ok := "", false
	switch {
	case dst.Type() == durationType:
		want, ok = "a duration with a unit, e.g. 300ms, 20s or 5m", setDuration(dst, raw)
	case dst.Type() == durationsType:
		want, ok = "a list of durations with a unit, e.g. 300ms, 20s or 5m", setDurations(dst, raw)
	case dst.Kind() == reflect.Pointer:
		setPointer(f, key, dst, raw, secret)
		return
	case dst.Kind() == reflect.Struct:
		setStruct(f, key, dst, raw)
		return
	case dst.Kind() == reflect.Map:
		setMap(f, key, dst, raw, secret)
		return
	case dst.Kind() == reflect.Slice:
		want, ok = "a list of strings", setList(dst, raw)
	case dst.Kind() == reflect.Bool:
		want, ok = "true or false", setBool(dst, raw)
	case dst.Kind() == reflect.Int:
		want, ok = "a whole number", setInt(dst, raw)
	default:
		want, ok = "a string (in quotes if it looks like something else)", setString(dst, raw)
	}
	switch {
	case ok:
	case secret:
		f.addf(key, "must be %s", want)
	default:
		f.addf(key, "must be %s, got %s", want, describe(raw))
	}
}

// describe shows a value that was refused.
func describe(raw any) string {
	switch v := raw.(type) {
	case string:
		return strconv.Quote(v)
	case map[string]any, map[any]any:
		return "a section"
	case []any, []string:
		return "a list"
	default:
		return fmt.Sprint(v)
	}
}

func setString(dst reflect.Value, raw any) bool {
	s, ok := raw.(string)
	if ok {
		dst.SetString(s)
	}
	return ok
}

func setBool(dst reflect.Value, raw any) bool {
	switch v := raw.(type) {
	case bool:
		dst.SetBool(v)
		return true
	case string:
		b, err := strconv.ParseBool(strings.TrimSpace(v))
		if err == nil {
			dst.SetBool(b)
		}
		return err == nil
	}
	return false
}

func setInt(dst reflect.Value, raw any) bool {
	n, ok := toInt(raw)
	if ok {
		dst.SetInt(n)
	}
	return ok
}

func toInt(raw any) (int64, bool) {
	switch v := raw.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case json.Number:
		n, err := v.Int64()
		return n, err == nil
	case string:
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		return n, err == nil
	}
	return 0, false
}

// setDuration takes Go's notation and a plain 0.
func setDuration(dst reflect.Value, raw any) bool {
	if s, ok := raw.(string); ok {
		d, err := time.ParseDuration(strings.TrimSpace(s))
		if err == nil {
			dst.SetInt(int64(d))
		}
		return err == nil
	}
	n, ok := toInt(raw)
	if ok = ok && n == 0; ok {
		dst.SetInt(0)
	}
	return ok
}

// setDurations takes a list of what setDuration takes, or one string with
// commas.
func setDurations(dst reflect.Value, raw any) bool {
	var items []any
	switch v := raw.(type) {
	case string:
		if strings.TrimSpace(v) != "" {
			for item := range strings.SplitSeq(v, ",") {
				items = append(items, item)
			}
		}
	case []time.Duration: // a flag's
		dst.Set(reflect.ValueOf(slices.Clone(v)))
		return true
	case []any:
		items = v
	default:
		return false
	}
	list := make([]time.Duration, len(items))
	for i, item := range items {
		if !setDuration(reflect.ValueOf(&list[i]).Elem(), item) {
			return false
		}
	}
	dst.Set(reflect.ValueOf(list))
	return true
}

// setPointer stores a value that may be unset. A value that is refused leaves
// it unset.
func setPointer(f *faults, key string, dst reflect.Value, raw any, secret bool) {
	v := reflect.New(dst.Type().Elem())
	before := len(f.all)
	if setValue(f, key, v.Elem(), raw, secret); len(f.all) == before {
		dst.Set(v)
	}
}

// setList takes a list of strings, or one string with commas.
func setList(dst reflect.Value, raw any) bool {
	var list []string
	switch v := raw.(type) {
	case string:
		if strings.TrimSpace(v) != "" {
			list = strings.Split(v, ",")
		}
	case []string:
		list = slices.Clone(v)
	case []any:
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return false
			}
			list = append(list, s)
		}
		// An argument of a command keeps its spaces.
		dst.Set(reflect.ValueOf(list))
		return true
	default:
		return false
	}
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	dst.Set(reflect.ValueOf(list))
	return true
}

// setMap keeps the keys as they are: upper case and dots included.
func setMap(f *faults, key string, dst reflect.Value, raw any, secret bool) {
	section, ok := raw.(map[string]any)
	if !ok {
		f.addf(key, "must be a section, got %s", shown(raw, secret))
		return
	}
	elem := dst.Type().Elem()
	m := reflect.MakeMapWithSize(dst.Type(), len(section))
	for _, name := range slices.Sorted(maps.Keys(section)) {
		v := reflect.New(elem).Elem()
		setValue(f, fmt.Sprintf("%s[%q]", key, name), v, section[name], secret)
		m.SetMapIndex(reflect.ValueOf(name), v)
	}
	dst.Set(m)
}

func setStruct(f *faults, key string, dst reflect.Value, raw any) {
	section, ok := raw.(map[string]any)
	if !ok {
		f.addf(key, "must be a section, got %s", describe(raw))
		return
	}
	fields := make(map[string]Key)
	var names []string
	for _, k := range walk(dst, "", nil) {
		fields[k.Name] = k
		names = append(names, k.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(section)) {
		k, known := fields[name]
		if !known {
			f.addf(key+"."+name, "unknown key%s", hint("", name, names))
			continue
		}
		if text, ok := section[name].(string); ok && (k.Type == typeList || k.Type == typeDurations) {
			of := map[string]string{typeList: "strings", typeDurations: "durations"}[k.Type]
			f.addf(key+"."+name, "must be a list of %s, got %q", of, text)
			continue
		}
		setValue(f, key+"."+name, dst.FieldByIndex(k.index), section[name], k.Secret)
	}
}

func shown(raw any, secret bool) string {
	if secret {
		return "something else"
	}
	return describe(raw)
}
