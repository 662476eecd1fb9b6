package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTokenFile(t *testing.T) {
	const token = "0123456789abcdef-!~"
	file := write(t, "alice.token", "\n "+token+"\r\n")
	t.Setenv("PENSTOCK_TOKEN_FILE", file)
	c, from, err := LoadClient("", nil)
	if err != nil || c.Token != token || c.TokenFile != file {
		t.Fatalf("%+v, %v", c, err)
	}
	if got, want := from.Of("token").String(), "token_file "+file; got != want {
		t.Errorf("origin %q, want %q", got, want)
	}
	other := write(t, "bob.token", "bob-0123456789abcdef")
	if c, _, err = LoadClient("", flagsFor(t, DefaultClient(), "--token-file="+other)); err != nil || c.Token != "bob-0123456789abcdef" {
		t.Errorf("a flag in place of the variable: %+v, %v", c, err)
	}
	_, _, err = LoadClient("", flagsFor(t, DefaultClient(), "--token="+token))
	wantError(t, err, "token: token_file is set too, by env PENSTOCK_TOKEN_FILE; set only one of them (flag --token)")

	t.Setenv("PENSTOCK_TOKEN_FILE", "")
	t.Setenv("PENSTOCK_TOKEN", token)
	if c, _, err = LoadClient("", nil); err != nil || c.Token != token {
		t.Errorf("by PENSTOCK_TOKEN: %+v, %v", c, err)
	}
	if c, _, err = LoadClient("", flagsFor(t, DefaultClient(), "--token="+token+"x")); err != nil || c.Token != token+"x" {
		t.Errorf("by flag: %+v, %v", c, err)
	}
	var out strings.Builder
	if err := Print(&out, c, nil, ""); err != nil || strings.Contains(out.String(), token) {
		t.Errorf("%v: the token is shown:\n%s", err, out.String())
	}
}

func TestTokenFileRefusals(t *testing.T) {
	const secret = "s3cr3t"
	for text, want := range map[string]string{
		"":                              "is empty",
		"0123456789abcdef\n0123456789":  "must hold one line, the token",
		secret:                          "token: a token must have 16 to 1024 characters",
		secret + " 0123456789abcdef":    "without spaces",
		"sha256:" + secret + "45678901": "that is for the hash of one",
	} {
		_, _, err := LoadClient("", flagsFor(t, DefaultClient(), "--token-file="+write(t, "token", text)))
		wantError(t, err, want)
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
	_, _, err := LoadClient("", flagsFor(t, DefaultClient(), "--token-file="+filepath.Join(t.TempDir(), "none")))
	wantError(t, err, "token_file: open ", "(flag --token-file)")
}

func TestTokensFileIsChecked(t *testing.T) {
	file := write(t, "tokens", "alice 0123456789abcdef\n")
	t.Setenv("PENSTOCK_AUTH_TOKENS_FILE", file)
	if c, _, err := LoadOrchestrator("", nil); err != nil || c.Auth.TokensFile != file {
		t.Fatalf("%+v, %v", c.Auth, err)
	}
	if err := os.WriteFile(file, []byte("alice 0123456789abcdef\nbob 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := LoadOrchestrator("", nil)
	wantError(t, err, "auth.tokens_file: "+file+": line 2: ", "(env PENSTOCK_AUTH_TOKENS_FILE)")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, _, err = LoadOrchestrator("", nil)
	wantError(t, err, "auth.tokens_file: open ")
}

func TestWorkersOrchestrator(t *testing.T) {
	const token = "0123456789abcdef"
	file := write(t, "worker.token", token+"\n")
	flags := func(args ...string) (Worker, error) {
		c, _, err := LoadWorker("", flagsFor(t, DefaultWorker(), args...))
		return c, err
	}
	c, err := flags("--orchestrator-url=http://a:1, https://b/", "--orchestrator-token-file="+file)
	if err != nil || c.Orchestrator.Token != token || c.Orchestrator.URL != "http://a:1, https://b/" {
		t.Fatalf("%+v, %v", c.Orchestrator, err)
	}
	_, err = flags("--orchestrator-url=http://a,b")
	wantError(t, err, "orchestrator.url: must start with http:// or https://")
	_, err = flags("--orchestrator-token=s3cr3t")
	wantError(t, err, "orchestrator.token: a token must have 16 to 1024 characters")
	_, err = flags("--orchestrator-token="+token, "--orchestrator-token-file="+file)
	wantError(t, err, "orchestrator.token: orchestrator.token_file is set too")
	c.Orchestrator.URL = "http://a, http://user:s3cr3t@b"
	var out strings.Builder
	if err := Print(&out, c, nil, ""); err != nil || strings.Contains(out.String(), token) || strings.Contains(out.String(), "s3cr3t") {
		t.Errorf("%v: a secret is shown:\n%s", err, out.String())
	}
}
