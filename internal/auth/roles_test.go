package auth

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
)

// as is the header of a call with a token.
func as(token string) http.Header { return http.Header{header: {scheme + " " + token}} }

func TestParseRolesAndExpiry(t *testing.T) {
	t.Parallel()
	tokens, err := Parse([]byte("alice " + aliceToken + " roles=viewer,producer,viewer expires=2027-03-31T18:00:00+02:00\n" +
		"alice " + aliceToken + " expires=2027-03-31T16:00:00Z roles=producer,viewer\n" + // the same, in other words
		"alice alice-second-token roles=admin\n" +
		"bob " + bobToken + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if tokens.Len() != 3 {
		t.Errorf("%d tokens", tokens.Len())
	}
	first, second := tokens.find(aliceToken), tokens.find("alice-second-token")
	if !slices.Equal(first.roles, []string{"producer", "viewer"}) || !slices.Equal(second.roles, []string{"admin"}) {
		t.Errorf("roles %v, %v", first.roles, second.roles)
	}
	at := time.Date(2027, 3, 31, 16, 0, 0, 0, time.UTC)
	if first.expired(at.Add(-time.Nanosecond)) || !first.expired(at) || second.expired(at.AddDate(1000, 0, 0)) {
		t.Errorf("expires %s", first.expires)
	}
	if noRoles, expired := tokens.unusable(at); !slices.Equal(noRoles, []int{4}) || !slices.Equal(expired, []int{1}) {
		t.Errorf("lines without roles %v, expired %v; want 4 and 1", noRoles, expired)
	}
}

func TestExpiredTokenIsRefused(t *testing.T) {
	t.Parallel()
	f, path, logs := setup(t)
	put(t, path, "alice "+aliceToken+" roles=viewer expires=2001-01-01T00:00:00Z\nbob "+bobToken+" roles=viewer expires=2999-01-01T00:00:00+14:00\n")
	f.look()
	f.look()
	if _, err := f.authenticate(t.Context(), as(aliceToken)); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "alice expired at 2001-01-01T00:00:00Z") {
		t.Errorf("%v", err)
	}
	if c, err := f.authenticate(t.Context(), as(bobToken)); err != nil || c.name != "bob" {
		t.Errorf("%v, %v", c, err)
	}
	if got := logs.take(); !strings.Contains(got, "tokens have expired") || !strings.Contains(got, "lines=[1]") || strings.Contains(got, "alice") {
		t.Errorf("logged %s", got)
	}
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	need := []string{"operator", "producer"}
	for _, tc := range []struct {
		caller
		need []string
		code connect.Code // 0: may
		want string
	}{
		{caller{name: "alice", roles: []string{"producer"}}, need, 0, ""},
		{caller{name: "alice", roles: []string{"admin"}}, need, 0, ""},
		{caller{name: "", roles: []string{"operator"}}, need, 0, ""},
		{caller{name: "alice", roles: []string{"viewer", "worker"}}, need, connect.CodePermissionDenied,
			"CancelTask takes one of the roles operator, producer, admin, and this token of alice has viewer, worker"},
		{caller{name: "alice", roles: nil}, need, connect.CodePermissionDenied, "this token of alice has none: add roles=operator, or another of them, to its line"},
		{caller{}, need, connect.CodeUnauthenticated, "operator, producer, admin; send a token"},
		{caller{name: "", roles: []string{"viewer"}}, need, connect.CodeUnauthenticated, "callers without a token have viewer; send a token"},
		{caller{name: "alice", roles: []string{"admin"}}, nil, connect.CodePermissionDenied, "CancelTask declares no roles"},
		{caller{name: "alice", roles: []string{"operator"}}, []string{"admin"}, connect.CodePermissionDenied, "one of the roles admin, and"},
	} {
		err := authorize(tc.caller, "CancelTask", tc.need)
		if tc.code == 0 && err == nil {
			continue
		}
		if err == nil || connect.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.caller, err, tc.want)
		}
	}
}

func TestAnonymousRoles(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/tokens"
	put(t, path, "alice "+aliceToken)
	for _, tc := range []struct {
		path  string
		roles []string
		want  []string
	}{
		{"", nil, []string{"admin", "approver", "operator", "payloads", "producer", "viewer", "worker"}},
		{path, nil, nil},
		{path, []string{"viewer", "producer"}, []string{"producer", "viewer"}},
	} {
		f, err := Open(tc.path, discard, tc.roles...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := f.authenticate(t.Context(), nil)
		if err != nil || !slices.Equal(c.roles, tc.want) {
			t.Errorf("%q, %v: %v, %v", tc.path, tc.roles, c, err)
		}
	}
	if _, err := Open("", discard, "root"); err == nil || !strings.Contains(err.Error(), "anonymous") {
		t.Errorf("%v", err)
	}
}

func TestRolesOfAContext(t *testing.T) {
	t.Parallel()
	ctx := WithPrincipal(t.Context(), "alice", "viewer", "approver")
	if got := Roles(ctx); !slices.Equal(got, []string{"approver", "viewer"}) || Principal(ctx) != "alice" {
		t.Errorf("%v", got)
	}
	if !HasRole(ctx, RoleViewer) || HasRole(ctx, RoleAdmin) || HasRole(context.Background(), RoleViewer) {
		t.Error("roles")
	}
	if admin := WithPrincipal(t.Context(), "ada", RoleAdmin); !HasRole(admin, RoleWorker) {
		t.Error("an admin has every role")
	}
}

// FuzzParse: a file is refused or means what its lines say, and the error never
// repeats a token.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"alice " + aliceToken + " roles=viewer,admin expires=2027-03-31T18:00:00+02:00\n", "# x\n\nbob " + hashed(bobToken) + " roles=worker",
		"a " + bobToken + " expires=", "a sha256: roles=", "a\x00b " + aliceToken, "a roles=viewer", "\xff\xfe x", "Alice " + aliceToken + "\nalice " + bobToken,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens, err := Parse(text)
		if err != nil {
			for _, word := range strings.Fields(string(text)) {
				if len(word) >= minToken && strings.Contains(err.Error(), word) && !strings.Contains("expires=TIME 2027-03-31T18:00:00+02:00", word) {
					t.Errorf("the error repeats %q: %v", word, err)
				}
			}
			return
		}
		var again []byte
		for _, e := range tokens.entries {
			if CheckName(e.name) != nil {
				t.Errorf("the name %q was taken", e.name)
			}
			if roles, err := ParseRoles(e.roles); err != nil || !slices.Equal(roles, e.roles) {
				t.Errorf("roles %v", e.roles)
			}
			again = append(again, lineOf(&e)...)
		}
		same, err := Parse(again)
		if err != nil || same.Len() != tokens.Len() {
			t.Fatalf("%v in %q, made of %q", err, again, text)
		}
		for i := range tokens.entries {
			if !tokens.entries[i].equal(&same.entries[i]) {
				t.Errorf("%+v became %+v", tokens.entries[i], same.entries[i])
			}
		}
	})
}
