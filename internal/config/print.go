package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the settings of cfg, their values and where they came from, in
// the order of Keys. format is "table" (the default if empty) or "json", an
// object by key. Passwords are replaced by xxxxx. o may be nil.
func Print(w io.Writer, cfg any, o *Origins, format string) error {
	switch format {
	case "", "table":
		return printTable(w, cfg, o)
	case "json":
		return printJSON(w, cfg, o)
	default:
		return fmt.Errorf("config: unknown format %q; want table or json", format)
	}
}

func printTable(w io.Writer, cfg any, o *Origins) error {
	v := structOf(cfg)
	var b strings.Builder
	b.WriteString("KEY\tVALUE\tORIGIN\n")
	for _, k := range Keys(cfg) {
		for _, row := range rows(k.Name, plain(v.FieldByIndex(k.index), k.Secret)) {
			fmt.Fprintf(&b, "%s\t%s\t%s\n", row[0], row[1], o.Of(k.Name))
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(tw, b.String()); err != nil {
		return err
	}
	return tw.Flush()
}

// rows is one row for a scalar or list, and one for each part of a map.
func rows(key string, value any) [][2]string {
	parts, ok := value.(map[string]any)
	if !ok || len(parts) == 0 {
		return [][2]string{{key, valueText(value)}}
	}
	var all [][2]string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		section, ok := parts[name].(map[string]any)
		if !ok {
			all = append(all, [2]string{fmt.Sprintf("%s[%q]", key, name), valueText(parts[name])})
			continue
		}
		for _, field := range slices.Sorted(maps.Keys(section)) {
			all = append(all, rows(fmt.Sprintf("%s[%q].%s", key, name, field), section[field])...)
		}
	}
	return all
}

func printJSON(w io.Writer, cfg any, o *Origins) error {
	type entry struct {
		Value  any    `json:"value"`
		Origin string `json:"origin"`
	}
	v := structOf(cfg)
	var b strings.Builder
	b.WriteString("{")
	for i, k := range Keys(cfg) {
		if i > 0 {
			b.WriteString(",")
		}
		var one strings.Builder
		enc := json.NewEncoder(&one)
		enc.SetEscapeHTML(false)
		enc.SetIndent("  ", "  ")
		if err := enc.Encode(entry{plain(v.FieldByIndex(k.index), k.Secret), o.Of(k.Name).String()}); err != nil {
			return fmt.Errorf("config: print %s: %w", k.Name, err)
		}
		fmt.Fprintf(&b, "\n  %q: %s", k.Name, strings.TrimSuffix(one.String(), "\n"))
	}
	b.WriteString("\n}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// plain turns a value into what JSON can hold, without secrets: durations
// become strings, structs become maps without the fields that are not set.
func plain(v reflect.Value, secret bool) any {
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return nil
	case v.Kind() == reflect.Pointer:
		return plain(v.Elem(), secret)
	case v.Type() == durationType:
		return durationText(time.Duration(v.Int()))
	case v.Kind() == reflect.String && secret:
		return redactSecret(v.String())
	case v.Kind() == reflect.String:
		return RedactText(v.String())
	case v.Kind() == reflect.Slice:
		list := make([]any, 0, v.Len())
		for i := range v.Len() {
			list = append(list, plain(v.Index(i), secret))
		}
		return list
	case v.Kind() == reflect.Map:
		return plainMap(v, secret)
	case v.Kind() == reflect.Struct:
		m := make(map[string]any)
		for _, k := range walk(v, "", nil) {
			if field := v.FieldByIndex(k.index); !field.IsZero() {
				m[k.Name] = plain(field, k.Secret)
			}
		}
		return m
	default:
		return v.Interface()
	}
}

// plainMap hides the values of a secret map whole: a header or a variable may
// be a token, whatever it looks like.
func plainMap(v reflect.Value, secret bool) any {
	m := make(map[string]any, v.Len())
	for it := v.MapRange(); it.Next(); {
		if secret {
			m[it.Key().String()] = redacted
		} else {
			m[it.Key().String()] = plain(it.Value(), false)
		}
	}
	return m
}

// valueText shows what plain returned in one line.
func valueText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		if v == "" || strings.ContainsFunc(v, func(r rune) bool { return !strconv.IsPrint(r) }) {
			return strconv.Quote(v)
		}
		return v
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		var parts []string
		for _, item := range v {
			parts = append(parts, valueText(item))
		}
		return strings.Join(parts, ",")
	case map[string]any:
		if len(v) == 0 {
			return "{}"
		}
	}
	return fmt.Sprint(value)
}
