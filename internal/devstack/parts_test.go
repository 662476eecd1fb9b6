package devstack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptionsOutOfBounds(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"RedisDatabases is -1":    {RedisDatabases: -1},
		"RedisDatabases is 65537": {RedisDatabases: 65537},
		"MaxConnections is 9":     {MaxConnections: 9},
		"contradict each other":   {Durable: true, FsyncOff: true},
	} {
		if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start(%+v): %v, want an error with %q", o, err, want)
		}
	}
}

func TestDefaultDir(t *testing.T) {
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	want := filepath.Join(data, "penstock", "dev")
	if os.Geteuid() == 0 {
		want = "/var/lib/penstock/dev"
	}
	if got := DefaultDir(); got != want {
		t.Errorf("DefaultDir() = %q, want %q", got, want)
	}
}

// program writes an executable file.
func program(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFinderPrefersTheNewestMatchingVersion(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"9.6", "15", "17"} {
		program(t, filepath.Join(root, "pg", v, "bin", "postgres"))
		program(t, filepath.Join(root, "pg", v, "bin", "initdb"))
	}
	program(t, filepath.Join(root, "pg", "18", "bin", "postgres")) // without initdb
	program(t, filepath.Join(root, "bin", "valkey-server"))
	f := finder{path: filepath.Join(root, "bin"), postgres: filepath.Join(root, "pg", "*", "bin")}

	got, err := f.find(true, true, filepath.Join(root, "data"))
	want := programs{
		postgres: filepath.Join(root, "pg/17/bin/postgres"),
		initdb:   filepath.Join(root, "pg/17/bin/initdb"),
		redis:    filepath.Join(root, "bin/valkey-server"),
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}

	data := filepath.Join(root, "data")
	for version, wantErr := range map[string]string{"15\n": "", "12\n": "needs Postgres 12 but only 17, 15, 9.6 is installed; install postgresql-12"} {
		if err := os.MkdirAll(data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(version), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := f.find(true, false, data)
		switch {
		case wantErr == "" && (err != nil || !strings.Contains(got.postgres, "pg/15/")):
			t.Errorf("for data of version %q: %+v, %v", version, got, err)
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("for data of version %q: %v", version, err)
		}
	}
}

func TestLogTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if got := logTail(path, 0); got != "" {
		t.Errorf("tail of no file: %q", got)
	}
	old := "from an earlier run\n"
	if err := os.WriteFile(path, []byte(old+"one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(path, int64(len(old))); got != "one\ntwo" {
		t.Errorf("got %q", got)
	}
	long := strings.Repeat("x", 100) + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(long, 1000)+"end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(logTail(path, 0), "\n"); len(got) != tailLines || got[tailLines-1] != "end" {
		t.Errorf("got %d lines, the last %q", len(got), got[len(got)-1])
	}
}

func TestLargeLogIsSetAside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxLogSize+1); err != nil {
		t.Fatal(err)
	}
	f, from, err := openLog(path)
	if err != nil || from != 0 {
		t.Fatalf("offset %d, error %v", from, err)
	}
	_ = f.Close()
	if fi, err := os.Stat(path + ".1"); err != nil || fi.Size() != maxLogSize+1 {
		t.Errorf("the old log: %v, %v", fi, err)
	}
}

func TestStateSurvivesAndHeals(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.json")
	st := loadState(path)
	st.PostgresPort = 20001
	if err := st.save(path); err != nil {
		t.Fatal(err)
	}
	if got := loadState(path); got != st {
		t.Errorf("got %+v, want %+v", got, st)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loadState(path); got.PostgresPassword == "" || got.PostgresPassword == st.PostgresPassword || got.PostgresPort != 0 {
		t.Errorf("a damaged state became %+v", got)
	}
}
