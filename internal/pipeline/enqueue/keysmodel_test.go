package enqueue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// asked is a task as the model knows it.
type asked struct {
	tenant, id, typ, key, scope, payload string
	waits                                bool
	finished                             bool
	stored                               protocol.ID
}

type scoped struct{ scope, key string }

// keysModel is what keys, ids and scopes promise, one request after the other.
type keysModel struct {
	tasks   []*asked
	keys    map[scoped]*asked
	tenants []string
}

// foreign reports whether a scope is another tenant's.
func (m *keysModel) foreign(tenant, scope string) bool {
	if scope == tenant {
		return false
	}
	if slices.Contains(m.tenants, scope) {
		return true
	}
	for k, t := range m.keys {
		if k.scope == scope {
			return t.tenant != tenant
		}
	}
	return false
}

// differs names the first field of a repeat that is not as it was.
func (m *keysModel) differs(r, t *asked, byKey bool) string {
	switch {
	case !byKey && r.tenant != t.tenant:
		return "tenant"
	case r.typ != t.typ:
		return "type"
	case r.payload != t.payload:
		return "payload"
	case r.waits != t.waits:
		return "depends_on"
	case !byKey && r.key != t.key:
		return "idempotency_key"
	case !byKey && r.key != "" && r.scope != t.scope:
		return "idempotency_scope"
	}
	return ""
}

// enqueue says what becomes of a request: new, hit, or code and field; and its task.
func (m *keysModel) enqueue(r *asked) (string, *asked) {
	answer := func(t *asked, byKey bool) (string, *asked) {
		if field := m.differs(r, t, byKey); field != "" {
			return string(protocol.CodeDuplicate) + " " + field, nil
		}
		return "hit", t
	}
	const strange = string(protocol.CodeInputInvalid) + " idempotency_scope"
	held := m.keys[scoped{r.scope, r.key}]
	switch {
	case r.key != "" && held != nil:
		if held.tenant != r.tenant {
			return strange, nil
		}
		return answer(held, true)
	case m.foreign(r.tenant, r.scope):
		return strange, nil
	}
	for _, t := range m.tasks {
		if isUUID := len(t.id) == 36; r.id != "" && t.id == r.id && (isUUID || t.tenant == r.tenant) {
			return answer(t, false)
		}
	}
	m.tasks = append(m.tasks, r)
	if r.key != "" {
		m.keys[scoped{r.scope, r.key}] = r
	}
	return "new", r
}

// spellings of the same payloads.
var spellings = map[string][]string{
	"a": {`{"n":1,"s":"ü"}`, ` {"s":"\u00fc" , "n":1}`},
	"b": {`{"n":1.0,"s":"ü"}`},
	"c": {`[{"n":[1,2]}]`, "[ {\"n\" : [1,\n2]}]"},
}

// Whatever is enqueued in whatever order, with ids, keys and scopes of several
// tenants, one by one, in batches, and waiting for other tasks, while keys expire:
// the answers are those of a small model, and no two acts share effects.
func TestKeysFollowTheModel(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	janitor := retention.New(retention.Options{Store: r.Store, Redis: r.Client, Trim: time.Hour, Keys: time.Hour, Log: testkit.Log(t)})
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++ // each check has its own tenants
		ctx := context.WithoutCancel(t.Context())
		m := &keysModel{keys: map[scoped]*asked{}}
		for _, name := range []string{"a", "b"} {
			m.tenants = append(m.tenants, fmt.Sprint(name, "-", n))
		}
		anchor := map[string]string{}
		for _, tenant := range m.tenants {
			anchor[tenant] = uuid.Must(uuid.NewV7()).String()
			r.Enqueue(t, &enqueue.Request{Type: "anchor", TaskID: anchor[tenant], Tenant: tenant, ScheduleType: "delay", DelayMS: later})
		}
		ids := []string{"", "x", "y", uuid.Must(uuid.NewV7()).String(), uuid.Must(uuid.NewV7()).String()}
		scopes := append([]string{"", fmt.Sprint("s-", n), fmt.Sprint("other-", n)}, m.tenants...)
		batch := func(rt *rapid.T) {
			tenant, waits := rapid.SampledFrom(m.tenants).Draw(rt, "tenant"), rapid.Bool().Draw(rt, "waits")
			var requests []*enqueue.Request
			var want []*asked
			for range rapid.IntRange(1, 4).Draw(rt, "size") {
				a := &asked{
					tenant: tenant, waits: waits, id: rapid.SampledFrom(ids).Draw(rt, "id"), typ: rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "type"),
					key: rapid.SampledFrom([]string{"", "k1", "k2"}).Draw(rt, "key"), scope: rapid.SampledFrom(scopes).Draw(rt, "scope"), payload: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "payload"),
				}
				q := &enqueue.Request{
					TaskID: a.id, Type: a.typ, Tenant: tenant, IdempotencyKey: a.key, IdempotencyScope: a.scope, ScheduleType: "delay", DelayMS: later,
					Payload: []byte(rapid.SampledFrom(spellings[a.payload]).Draw(rt, "spelling")),
				}
				if waits {
					q.DependsOn = []enqueue.Dependency{{TaskID: anchor[tenant]}}
				}
				if a.scope == "" {
					a.scope = tenant
				}
				requests, want = append(requests, q), append(want, a)
			}
			results, err := r.Enqueuer.EnqueueAll(ctx, requests)
			if err != nil {
				rt.Fatal(err)
			}
			for i, a := range want {
				says, is := m.enqueue(a)
				got := "new"
				switch res := results[i]; {
				case res.Err != nil:
					got = res.Err.Error()
					if e, ok := res.Err.(*protocol.Error); ok { //nolint:errorlint // as the stage returns it
						got = string(e.Code) + " " + e.Field
					}
				case res.Value.Hit:
					got = "hit"
				}
				if got != says {
					rt.Fatalf("item %d of %d: %+v: %s, want %s", i, len(want), *a, got, says)
				}
				if is == nil {
					continue
				}
				id := protocol.ID(results[i].Value.Task().ID)
				if says == "new" {
					is.stored = id
				} else if id != is.stored {
					rt.Fatalf("item %d of %d: %+v: task %s, want %s", i, len(want), *a, id, is.stored)
				}
			}
		}
		finish := func(rt *rapid.T) {
			var open []*asked
			for _, a := range m.tasks {
				if !a.finished {
					open = append(open, a)
				}
			}
			if len(open) == 0 {
				rt.Skip("nothing to finish")
			}
			a := rapid.SampledFrom(open).Draw(rt, "task")
			a.finished = true
			if _, err := r.DB.Exec(ctx, "UPDATE tasks SET state = 'cancelled', due_at = NULL, finished_at = now() - interval '1 day', updated_at = now() - interval '1 day' WHERE id = $1", pgid.ID(a.stored)); err != nil {
				rt.Fatal(err)
			}
		}
		expire := func(rt *rapid.T) {
			if _, err := r.DB.Exec(ctx, "UPDATE idempotency_keys SET created_at = created_at - interval '1 day'"); err != nil {
				rt.Fatal(err)
			}
			if err := janitor.ExpireKeys(ctx); err != nil {
				rt.Fatal(err)
			}
			for k, a := range m.keys {
				if a.finished {
					delete(m.keys, k)
				}
			}
		}
		check := func(rt *rapid.T) {
			var tasks, keys, acts int
			err := r.DB.QueryRow(ctx, `SELECT count(*), (SELECT count(*) FROM idempotency_keys k JOIN tasks h ON h.id = k.task_id WHERE h.tenant = ANY($1)),
				count(DISTINCT (CASE WHEN t.effect_own OR t.effect_key IS NULL AND t.idempotency_key IS NULL THEN 't:' || t.tenant ELSE 'k:' || t.idempotency_scope END,
					COALESCE(t.effect_key, t.idempotency_key, t.name, t.id::text))) FROM tasks t WHERE t.tenant = ANY($1) AND t.type <> 'anchor'`, m.tenants).Scan(&tasks, &keys, &acts)
			if err != nil {
				rt.Fatal(err)
			}
			if tasks != len(m.tasks) || keys != len(m.keys) || acts != tasks {
				rt.Fatalf("%d tasks, %d keys, %d acts; want %d, %d, %d", tasks, keys, acts, len(m.tasks), len(m.keys), len(m.tasks))
			}
		}
		defer func() { // so that no check works on what others have left
			if _, err := r.DB.Exec(ctx, "DELETE FROM idempotency_keys"); err != nil {
				t.Error(err)
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){"enqueue": batch, "enqueue more": batch, "finish": finish, "expire": expire, "": check})
	})
}
