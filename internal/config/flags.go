package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// AddFlags registers a flag in fs for every setting of cfg, a configuration
// struct or a pointer to one, except maps. The flag of "server.shutdown_grace"
// is --server-shutdown-grace; an underscore may be typed in place of a dash. The
// values in cfg are shown as defaults, but never become values: the Load
// functions look only at flags that the user set. A flag that fs has already
// is left alone.
func AddFlags(fs *pflag.FlagSet, cfg any) {
	normalize := fs.GetNormalizeFunc()
	fs.SetNormalizeFunc(func(fs *pflag.FlagSet, name string) pflag.NormalizedName {
		return normalize(fs, strings.ReplaceAll(name, "_", "-"))
	})
	v := structOf(cfg)
	for _, k := range Keys(cfg) {
		if k.Flag == "" || fs.Lookup(k.Flag) != nil {
			continue
		}
		usage := k.Doc
		if k.Allowed != "" {
			usage += " Allowed: " + k.Allowed + "."
		}
		switch value := v.FieldByIndex(k.index).Interface().(type) {
		case time.Duration:
			fs.Duration(k.Flag, value, usage)
		case int:
			fs.Int(k.Flag, value, usage)
		case bool:
			fs.Bool(k.Flag, value, usage)
		case []time.Duration:
			fs.DurationSlice(k.Flag, value, usage)
		case []string:
			fs.StringSlice(k.Flag, value, usage)
		case string:
			if k.Secret {
				value = redactSecret(value)
			}
			fs.String(k.Flag, value, usage)
		}
		if flag := fs.Lookup(k.Flag); flag != nil {
			flag.Annotations = map[string][]string{settingAnnotation: {k.Name}}
		}
	}
}

const settingAnnotation = "penstock_setting"

// IsSetting reports whether AddFlags made a flag: it sets what could be set by
// a file or the environment as well.
func IsSetting(f *pflag.Flag) bool { return len(f.Annotations[settingAnnotation]) > 0 }

// lookup returns the flag of a key, or nil. Flags that a program registered
// itself may keep the key's underscores.
func lookup(flags *pflag.FlagSet, k Key) *pflag.Flag {
	if flags == nil {
		return nil
	}
	if flag := flags.Lookup(k.Flag); flag != nil {
		return flag
	}
	return flags.Lookup(strings.ReplaceAll(k.Name, ".", "-"))
}
