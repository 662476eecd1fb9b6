package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// common are settings of every connection. None is left to the server's, the
// database's or the login role's configuration, which would change what statements
// do: a transaction that is serializable fails where others write, a search_path
// finds other tables.
var common = map[string]string{
	"application_name":               "penstock",
	"client_encoding":                "UTF8",
	"datestyle":                      "ISO, MDY",
	"default_transaction_isolation":  "read committed",
	"default_transaction_deferrable": "off",
	"intervalstyle":                  "postgres",
	"lock_timeout":                   "0",
	"search_path":                    "public",
	"standard_conforming_strings":    "on",
	"statement_timeout":              "0", // of migrations
	"timezone":                       "UTC",
}

// session are those of the connections of a Store, beside the common ones. A plan
// is made once, when the tables may still be empty, and must be the right one for
// millions of rows too: go through indexes, one row at a time. (A plan that was
// made on empty tables scans them whole, and would go on doing so as they grow.)
var session = with(common, map[string]string{
	"plan_cache_mode":  "force_generic_plan", // planning the set-based statements costs more than running them
	"enable_seqscan":   "off",
	"enable_indexscan": "on",
	"enable_hashjoin":  "off",
	"enable_mergejoin": "off",
	"enable_material":  "off", // of a table that is read from end to end to be looked through for each row
	"enable_nestloop":  "on",
	// Whoever counts or verifies must not take the processors of those who work.
	"max_parallel_workers_per_gather": "0",
	"jit":                             "off", // the penalties above would set it off
	// A process that was stopped in mid-transaction must not hold its row locks
	// for ever, and no statement of ours takes long.
	"idle_in_transaction_session_timeout": "30s",
	"statement_timeout":                   "60s",
})

func with(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// pin adds settings to those that the URL brings, of which only a search_path
// stays: who has the tables in a schema of their own says so there.
func pin(params, settings map[string]string) {
	path := params["search_path"]
	maps.Copy(params, settings)
	if path != "" {
		params["search_path"] = path
	} else if strings.Contains(params["options"], "search_path") {
		delete(params, "search_path")
	}
}

// UnfitError says that the database, or what stands before it, is not what it must
// be, which waiting can't cure.
type UnfitError struct{ why string }

func (e *UnfitError) Error() string { return e.why }

// Unfit reports whether err is an *UnfitError.
func Unfit(err error) bool {
	_, ok := errors.AsType[*UnfitError](err)
	return ok
}

const pooler = "give postgres.url the address of Postgres itself: a pooler such as PgBouncer, which stands between, " +
	"does not keep the settings and prepared statements of a connection. An orchestrator pools its own (postgres.max_conns)"

// checkSession tells whether a new connection is to Postgres itself, with the
// settings that it asked for, and the database in UTF-8. PgBouncer may be told to
// ignore settings, so their values are looked at.
func checkSession(ctx context.Context, c *pgconn.PgConn, settings map[string]string) error {
	const ask = "SELECT current_setting('server_encoding'), current_setting('default_transaction_isolation'), current_setting('plan_cache_mode'), current_setting('timezone')"
	results, err := c.Exec(ctx, ask).ReadAll() // in the simple protocol, which every pooler passes on
	if err != nil {
		return fmt.Errorf("read the settings of the connection: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 4 {
		return errors.New("read the settings of the connection: unexpected reply")
	}
	row := results[0].Rows[0]
	if encoding := string(row[0]); encoding != "UTF8" {
		return &UnfitError{fmt.Sprintf("the database's encoding is %s, which can't hold every task: make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)}
	}
	for i, name := range []string{"default_transaction_isolation", "plan_cache_mode", "timezone"} {
		if got, want := string(row[i+1]), settings[name]; want != "" && got != want {
			return &UnfitError{fmt.Sprintf("the connection has %s = %s, and asked for %s: %s", name, got, want, pooler)}
		}
	}
	return nil
}

// sessionError says in words what a pooler's refusals mean.
func sessionError(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	if strings.Contains(e.Message, "unsupported startup parameter") || e.Code == "42P05" && strings.Contains(e.Message, "stmtcache_") {
		return &UnfitError{fmt.Sprintf("Postgres answers %q: %s", e.Message, pooler)}
	}
	return err
}
