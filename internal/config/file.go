package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 4 << 20

// readFile parses a configuration file by its extension. Keys keep their case,
// unlike in viper's own reader: task types and header names depend on it.
func readFile(name string) (map[string]any, error) {
	b, err := readLimited(name, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	tree := make(map[string]any)
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".yaml", ".yml":
		err = parseYAML(b, &tree)
	case ".toml":
		err = parseTOML(b, &tree)
	case ".json":
		err = parseJSON(b, &tree)
	default:
		return nil, fmt.Errorf("config file %s: unknown extension %q; want .yaml, .yml, .toml or .json", name, ext)
	}
	if err == nil {
		err = stringKeys("", tree)
	}
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", name, err)
	}
	return tree, nil
}

func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // It was only read.
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, nil
}

func parseYAML(b []byte, tree *map[string]any) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(tree); errors.Is(err, io.EOF) {
		return nil // nothing but comments
	} else if err != nil {
		return err
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("must hold one YAML document")
	}
	return nil
}

func parseTOML(b []byte, tree *map[string]any) error {
	err := toml.Unmarshal(b, tree)
	if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := syntax.Position()
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return err
}

func parseJSON(b []byte, tree *map[string]any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(tree); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return fmt.Errorf("line %d: %w", 1+bytes.Count(b[:syntax.Offset], []byte("\n")), err)
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("must hold one JSON object")
	}
	return nil
}

// stringKeys refuses keys that YAML reads as numbers or the like.
func stringKeys(path string, node any) error {
	switch v := node.(type) {
	case map[any]any:
		for k := range v {
			if _, ok := k.(string); !ok {
				return fmt.Errorf("%s: the key %v must be in quotes", path, k)
			}
		}
		return fmt.Errorf("%s: every key must be a string", path)
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if err := stringKeys(strings.TrimPrefix(path+"."+k, "."), v[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// schema knows which keys a program's file may have.
type schema struct {
	program  string
	leaves   map[string]Key
	sections map[string]bool
	names    []string // of leaves and sections
}

func newSchema(program string, keys []Key) schema {
	s := schema{program: program, leaves: make(map[string]Key), sections: make(map[string]bool)}
	for _, k := range keys {
		s.leaves[k.Name] = k
		s.names = append(s.names, k.Name)
		if i := strings.LastIndexByte(k.Name, '.'); i >= 0 && !s.sections[k.Name[:i]] {
			s.sections[k.Name[:i]] = true
			s.names = append(s.names, k.Name[:i])
		}
	}
	return s
}

// flatten walks a file's tree and returns the values by dotted key. Whatever
// is not in the schema becomes a fault.
func (s schema) flatten(f *faults, tree map[string]any) map[string]any {
	flat := make(map[string]any)
	s.walk(f, flat, "", tree)
	return flat
}

func (s schema) walk(f *faults, flat map[string]any, prefix string, node map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(node)) {
		key, value := prefix+name, node[name]
		_, leaf := s.leaves[key]
		section, isMap := value.(map[string]any)
		switch {
		case strings.Contains(name, ".") && (leaf || s.sections[key]):
			f.addf(key, "must be nested: write %s below %s", lastPart(key), key[:strings.LastIndexByte(key, '.')])
		case leaf && value == nil: // a key without a value is unset
		case leaf:
			flat[key] = value
		case !s.sections[key]:
			s.unknown(f, key, section)
		case isMap:
			s.walk(f, flat, key+".", section)
		case value != nil:
			f.addf(key, "must be a section, got %s", describe(value))
		}
	}
}

// unknown faults a key and says what may have been meant. A key of another
// program is told apart from a misspelt one.
func (s schema) unknown(f *faults, key string, section map[string]any) {
	probe := key
	for _, name := range slices.Sorted(maps.Keys(section)) {
		if ownersOf(key+"."+name) != nil {
			probe = key + "." + name
			break
		}
	}
	if owners := ownersOf(probe); owners != nil {
		f.addf(key, "is a setting of the %s, not of the %s", strings.Join(owners, " and the "), s.program)
		return
	}
	f.addf(key, "unknown key%s", hint("", key, s.names))
}
