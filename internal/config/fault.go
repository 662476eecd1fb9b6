package config

import (
	"errors"
	"fmt"
)

// fault is one thing that is wrong with one setting.
type fault struct {
	key    string
	msg    string
	origin string // where the value came from, or ""
}

func (f *fault) Error() string {
	if f.origin == "" {
		return f.key + ": " + f.msg
	}
	return f.key + ": " + f.msg + " (" + f.origin + ")"
}

// faults collects what is wrong. Its zero value is ready to use.
type faults struct{ all []error }

func (f *faults) addf(key, format string, args ...any) {
	f.all = append(f.all, &fault{key: key, msg: fmt.Sprintf(format, args...)})
}

// add adds an error; nil adds nothing.
func (f *faults) add(err error) {
	if err != nil {
		f.all = append(f.all, err)
	}
}

// merge adds what other has collected.
func (f *faults) merge(other *faults) { f.all = append(f.all, other.all...) }

// err joins the faults; nil if there are none.
func (f *faults) err() error { return errors.Join(f.all...) }

// locate tells of each fault that has no origin yet where the value came from.
// A default is not mentioned.
func (f *faults) locate(origin func(key string) Origin) {
	for _, err := range f.all {
		one, ok := errors.AsType[*fault](err)
		if !ok || one.origin != "" {
			continue
		}
		if from := origin(one.key); from.Source != SourceDefault {
			one.origin = from.String()
		}
	}
}
