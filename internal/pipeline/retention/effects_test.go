package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// effect stores one that a task has done, long ago unless it is named young.
func (p *past) effect(t *testing.T, name string, users ...protocol.ID) {
	t.Helper()
	at := time.Now().AddDate(0, 0, -40)
	if name == "young" {
		at = time.Now()
	}
	p.exec(t, `INSERT INTO effects (scope, key, name, state, token, task_id, delivery, worker_id, users, runs, reserved_at, done_at, result, updated_at)
		VALUES ('default', 'k:k', $1, 'done', gen_random_uuid(), $2, 1, 'w', $3::uuid[], 1, $4, $4, '1', $4)`, name, pgid.ID(users[0]), pgid.Slice(users), at)
}

// An effect is kept while a task that has used it, or what came of its dead letter,
// can still run.
func TestEffectsAreKeptAsLongAsTasksCanUseThem(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	ended, gone := p.succeeded(t, 3, 30), idAt(p.day(t, 35))
	dead, again := p.failed(t, 30), p.failed(t, 32)
	var letter pgid.ID
	if err := p.DB.QueryRow(t.Context(), "SELECT dlq_id FROM dlq_items WHERE task_id = $1", pgid.ID(again)).Scan(&letter); err != nil {
		t.Fatal(err)
	}
	res, err := p.Replay.Requeue(t.Context(), []protocol.ID{protocol.ID(letter)}, replay.RequeueOptions{Principal: "ada"})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	live := idAt(p.day(t, 31)) // last: its entry is not fetched
	p.queued(t, live)
	p.exec(t, "UPDATE dlq_items SET status = 'expired', payload = NULL WHERE task_id = $1", pgid.ID(again))
	p.effect(t, "ended", ended[0])
	p.effect(t, "young", ended[1])
	p.effect(t, "no task", gone)
	p.effect(t, "live", live)
	p.effect(t, "used by a live one", ended[2], live)
	p.effect(t, "open dead letter", dead)
	p.effect(t, "requeued", again)
	left := func() string {
		var names string
		if err := p.DB.QueryRow(t.Context(), "SELECT COALESCE(string_agg(name, ', ' ORDER BY name), '') FROM effects").Scan(&names); err != nil {
			t.Fatal(err)
		}
		return names
	}
	for name, c := range map[string]struct {
		tasks, effects time.Duration
		want           string
	}{
		"1 for ever": {0, 0, "ended, live, no task, open dead letter, requeued, used by a live one, young"},
		"2 as tasks": {60 * dayLong, 0, "ended, live, no task, open dead letter, requeued, used by a live one, young"},
	} {
		j := p.janitor(t, func(o *retention.Options) { o.Tasks, o.Effects = c.tasks, c.effects })
		if err := j.RemoveEffects(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := left(); got != c.want {
			t.Errorf("%s: left are %s", name, got)
		}
	}
	j := p.janitor(t, func(o *retention.Options) { o.Tasks, o.Effects = 0, 10*dayLong })
	for range 2 {
		if err := j.RemoveEffects(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := left(); got != "live, open dead letter, requeued, used by a live one, young" {
		t.Errorf("left are %s", got)
	}
	if n := p.metric(t, "penstock_retention_removed_total", "effects"); fmt.Sprint(n) != "2" {
		t.Errorf("%v counted", n)
	}
}
