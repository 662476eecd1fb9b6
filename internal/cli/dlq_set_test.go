package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

const setDoc = `{"z": 1.50, "a": {"b": [1, 2, {"c": 12345678901234567890}]}, "odd.key": "x", "é": null}`

var setCases = []struct{ doc, flags, want string }{
	{setDoc, `a.b[2].c=7`, `{"z":1.50,"a":{"b":[1,2,{"c":7}]},"odd.key":"x","é":null}`},
	{setDoc, `z=0.10`, `{"z":0.10,"a":{"b": [1, 2, {"c": 12345678901234567890}]},"odd.key":"x","é":null}`},
	{`{"a":1}`, `a=two words`, `{"a":"two words"}`},
	{`{"a":1}`, `a=`, `{"a":""}`},
	{`{"a":1}`, `a="12"`, `{"a":"12"}`},
	{`{"a":1}`, `a= 12 `, `{"a":12}`},
	{`{"a":1}`, `a=x=y`, `{"a":"x=y"}`},
	{`{"a":1}`, `a=<&>`, `{"a":"<&>"}`},
	{`{"a":1}`, `a=null`, `{"a":null}`},
	{`{"a":1}`, `b.c[0].d=true`, `{"a":1,"b":{"c":[{"d":true}]}}`},
	{`{"a":[1]}`, `a[1]=2`, `{"a":[1,2]}`},
	{`{}`, `["odd.key"]["="]["]"]=1`, `{"odd.key":{"=":{"]":1}}}`},
	{setDoc, `["odd.key"]=1`, `{"z":1.50,"a":{"b": [1, 2, {"c": 12345678901234567890}]},"odd.key":1,"é":null}`},
	{`{"a":1}`, `.=[1]`, `[1]`},
	{`[{"a":1}]`, `[0].a=2`, `[{"a":2}]`},
	{`{"\u0061":1}`, `a=2`, `{"\u0061":2}`},
	{`{"a":1,"a":2}`, `a=3`, `{"a":1,"a":3}`},
	{`{"a":1,"b":2,"c":3}`, `-b`, `{"a":1,"c":3}`},
	{`{"a":1}`, `-a`, `{}`},
	{`{"a":1,"a":2}`, `-a`, `{}`},
	{`{"a":[1,2,3]}`, `-a[0]`, `{"a":[2,3]}`},
	{`{"":1}`, `[""]=2`, `{"":2}`},
	// What can't be done names the place.
	{`{"a":1}`, `a.b=1`, `! a is a number, not an object`},
	{`{"a":null}`, `a.b=1`, `! a is null, not an object`},
	{`{"a":{}}`, `a[0]=1`, `! a is an object, not an array`},
	{`{"a":[1]}`, `a[2]=1`, `! a has 1 elements: [2] would leave a gap`},
	{`{}`, `a[1]=1`, `! a: a new array starts with [0], not [1]`},
	{`{"a":{}}`, `-a.b`, `! there is no a.b`},
	{`{"a":[]}`, `-a[0]`, `! there is no a[0]`},
	{`{"a":1}`, `-.`, `! the whole payload can't be removed`},
	{`"x"`, `a=1`, `! the payload is a string, not an object`},
	// Paths that are none.
	{`{}`, `a`, `! want PATH=VALUE`},
	{`{}`, `=1`, `! the path is empty`},
	{`{}`, `a..b=1`, `! a key is missing`},
	{`{}`, `.a=1`, `! a key is missing`},
	{`{}`, `a[x]=1`, `! is not an index`},
	{`{}`, `a[-1]=1`, `! is not an index`},
	{`{}`, `a[1=1`, `! is not closed`},
	{`{}`, `a["x=1`, `! is not a quoted key`},
	{`{}`, `a["x"=1`, `! is not closed`},
	{`{}`, `a[0]b=1`, `! want a dot`},
	{`{}`, `-a=1`, `! want a path alone`},
	{`{}`, "a=\x85", `! is not valid UTF-8`},
}

func TestSetJSON(t *testing.T) {
	t.Parallel()
	for _, c := range setCases {
		got, err := apply(c.doc, c.flags)
		if text, fails := strings.CutPrefix(c.want, "! "); fails {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s in %s: %v, want an error with %q; got %s", c.flags, c.doc, err, text, got)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s in %s:\n got %s, %v\nwant %s", c.flags, c.doc, got, err, c.want)
		}
	}
}

// apply applies one flag; those that begin with a dash are --unset.
func apply(doc, flag string) (string, error) {
	var list changes
	var err error
	if path, unset := strings.CutPrefix(flag, "-"); unset {
		err = unsetFlag{&list}.Set(path)
	} else {
		err = setFlag{&list}.Set(flag)
	}
	if err != nil {
		return "", err
	}
	out, err := setJSON(json.RawMessage(doc), list[0].path, list[0].value)
	return string(out), err
}

// FuzzSetJSON: whatever the path, valid JSON stays valid, and the value can be
// read back where it was put.
func FuzzSetJSON(f *testing.F) {
	f.Add(`{"a":[1,{"b":2}]}`, `a[1].b=3`)
	f.Add(`{"a":1}`, `-a`)
	f.Add(` [ 1 , 2 ] `, `[2]=x`)
	f.Add(`{"a":{"\ud800":1.0e5}}`, `a["\ud800"]=2`)
	f.Fuzz(func(t *testing.T, doc, flag string) {
		if !json.Valid([]byte(doc)) {
			return
		}
		got, err := apply(doc, flag)
		if err != nil {
			return
		}
		if !json.Valid([]byte(got)) {
			t.Fatalf("%q in %q: %q is not JSON", flag, doc, got)
		}
		if strings.HasPrefix(flag, "-") {
			return
		}
		again, err := apply(got, flag)
		if err != nil || string(compact([]byte(again))) != string(compact([]byte(got))) {
			t.Fatalf("%q in %q: %q, and once more %q, %v", flag, doc, got, again, err)
		}
	})
}
