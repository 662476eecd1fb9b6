package config

// Source is where a value came from. A higher one overrides a lower one.
type Source uint8

// The sources, in rising order of precedence. SourceURLFile and SourceTokenFile
// are the files that the settings url_file and token_file name; they stand in for
// a URL or token that no other source has.
const (
	SourceDefault Source = iota
	SourceFile
	SourceEnv
	SourceFlag
	SourceURLFile
	SourceTokenFile
)

// Origin is where one value came from.
type Origin struct {
	Source Source
	// Name is the file, the environment variable or the flag (with its
	// dashes); empty for a default.
	Name string
}

// String returns e.g. "default", "file penstock.yaml", "env PENSTOCK_LOG_LEVEL",
// "flag --log-level" or "url_file /run/secrets/postgres".
func (o Origin) String() string {
	switch o.Source {
	case SourceFile:
		return "file " + o.Name
	case SourceEnv:
		return "env " + o.Name
	case SourceFlag:
		return "flag " + o.Name
	case SourceURLFile:
		return "url_file " + o.Name
	case SourceTokenFile:
		return "token_file " + o.Name
	default:
		return "default"
	}
}

// Origins tells where the values of a loaded configuration came from. A nil
// *Origins says default for every key.
type Origins struct{ byKey map[string]Origin }

// Of returns the origin of a key such as "server.listen". All handlers of a
// worker share the origin of "handlers", all types the one of "types". An
// unknown key is a default.
func (o *Origins) Of(key string) Origin {
	if o == nil {
		return Origin{}
	}
	return o.byKey[key]
}

func (o *Origins) set(key string, from Origin) { o.byKey[key] = from }
