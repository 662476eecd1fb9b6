package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

const (
	aliceToken = "alice-0123456789abcdef"
	bobToken   = "bob-~!@#$%^&*()=+/.,:;"
)

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

func TestParse(t *testing.T) {
	t.Parallel()
	text := "# people\n\n  alice \t" + aliceToken + "\r\n" +
		"alice " + hashed("alice-second-token") + "\n" +
		"\t#bob x\n" +
		"bob " + hashPrefix + strings.ToUpper(strings.TrimPrefix(hashed(bobToken), hashPrefix)) + "\n" +
		"alice " + aliceToken
	tokens, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if tokens.Len() != 3 {
		t.Errorf("%d tokens", tokens.Len())
	}
	for token, want := range map[string]string{
		aliceToken: "alice", "alice-second-token": "alice", bobToken: "bob",
		"": "", "alice": "", aliceToken + "x": "", hashed(bobToken): "", strings.ToUpper(aliceToken): "",
	} {
		if name, ok := tokens.Principal(token); name != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", token, name, ok)
		}
	}
	if empty, err := Parse([]byte("\n# nobody\n")); err != nil || empty.Len() != 0 {
		t.Errorf("an empty file: %v", err)
	} else if name, ok := empty.Principal(aliceToken); ok {
		t.Errorf("an empty file knows %s", name)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-"
	for line, want := range map[string]string{
		"alice":                                                                         "has 1 word, want a name and a token",
		"alice " + aliceToken + " # a comment":                                          "word 3: after the token",
		"alice " + aliceToken + " admin":                                                "word 3: after the token",
		"alice " + aliceToken + " roles=":                                               "role 1 of the list is none of producer, worker, operator, approver, viewer, payloads, admin",
		"alice " + aliceToken + " roles=viewer,":                                        "role 2 of the list",
		"alice " + aliceToken + " roles=Viewer":                                         "role 1 of the list",
		"alice " + aliceToken + " roles=" + secret:                                      "role 1 of the list",
		"al " + bobToken + " roles=viewer " + secret:                                    "word 4: after the token",
		"al " + bobToken + " roles=viewer roles=viewer":                                 "word 4: a line has roles= once",
		"al " + bobToken + " expires=":                                                  "word 3: expires= must be a time with an offset",
		"al " + bobToken + " expires=2027-01-31":                                        "with an offset",
		"al " + bobToken + " expires=2027-01-31T12:00:00":                               "with an offset",
		"al " + bobToken + " expires=2027-02-31T12:00:00Z":                              "with an offset",
		"al " + bobToken + " expires=" + secret:                                         "with an offset",
		"al " + bobToken + " expires=2027-01-31T12:00:00Z expires=2027-01-31T12:00:00Z": "word 4: a line has expires= once",
		"alice " + aliceToken + " roles=viewer":                                         "other roles, other tenants or another expiry",
		"alice " + aliceToken + " expires=2027-01-31T12:00:00Z":                         "other roles, other tenants or another expiry",
		"al " + bobToken + " tenants=":                                                  "tenant 1 of the list must be 1 to 255 bytes",
		"al " + bobToken + " tenants=a,*":                                               "tenant 2 of the list",
		"al " + bobToken + " tenants=a tenants=*":                                       "word 4: a line has tenants= once",
		"al " + bobToken + " roles=viewer,admin tenants=a":                              "the role admin is about every tenant",
		"al " + bobToken + " tenants=" + strings.Repeat("t,", 1000) + "t":               "has 1001 names, at most 1000",
		"alice " + aliceToken + " tenants=" + secret:                                    "other roles, other tenants or another expiry",
		"al cert:":                                 "a name of a certificate",
		"al cert:" + strings.Repeat("x", 256):      "1 to 255 visible ASCII",
		"al!ce " + aliceToken:                      "a name must be",
		strings.Repeat("a", 65) + " " + aliceToken: "a name must be",
		"anonymous " + aliceToken:                  "anonymous",
		"Anonymous " + aliceToken:                  "Anonymous",
		"Alice " + bobToken:                        "in case only",
		"alice " + secret + "45678":                "16 to 1024 characters, got 12",
		"alice " + strings.Repeat("x", 1025):       "got 1025",
		"alice " + secret + "é-0123456789":         "visible ASCII",
		"alice sha256:":                            "64 hexadecimal digits",
		"alice sha256:" + secret:                   "64 hexadecimal digits",
		"alice " + hashed(aliceToken) + "00":       "64 hexadecimal digits",
		"alice sha256:" + strings.Repeat("g", 64):  "64 hexadecimal digits",
		"bob " + aliceToken:                        "another name",
		"bob " + hashed(aliceToken):                "another name",
		secret + "0123456789 alice":                "got 5",
	} {
		_, err := Parse([]byte("# first\nalice " + aliceToken + "\n" + line))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "line 3: ") {
			t.Errorf("%s: %v, want %q", line, err, want)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

// TestDocumentedFile reads the example of docs/authentication.md.
func TestDocumentedFile(t *testing.T) {
	t.Parallel()
	doc := content(t, "../../docs/authentication.md")
	_, rest, ok := strings.Cut(doc, "```text\n")
	example, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("there is no example")
	}
	tokens, err := Parse([]byte(example))
	if err != nil || tokens.Len() != 4 {
		t.Fatalf("%v in\n%s", err, example)
	}
	if name, ok := tokens.Principal("3c1b0a5f7e6d4c2b9a8f7e6d5c4b3a291807f6e5d4c3b2a1"); !ok || name != "bob" {
		t.Errorf("%q, %v", name, ok)
	}
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	for token, ok := range map[string]bool{
		aliceToken: true, bobToken: true, strings.Repeat("x", 16): true, strings.Repeat("x", 1024): true,
		strings.Repeat("x", 15): false, "with a space in it": false, "with\na line break": false, hashed("x"): false, "cert:shop.example.com": false, "tenants=0123456789": false, "": false, "roles=admin,viewer": false, "expires=2027-01-31": false,
	} {
		if err := CheckToken(token); (err == nil) != ok {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// BenchmarkPrincipal shows what a call pays with a thousand tokens.
func BenchmarkPrincipal(b *testing.B) {
	var text []byte
	for i := range 1000 {
		text = fmt.Appendf(text, "user-%d token-number-%08d\n", i, i)
	}
	tokens, err := Parse(text)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if name, _ := tokens.Principal("token-number-00000999"); name != "user-999" {
			b.Fatal(name)
		}
	}
}
