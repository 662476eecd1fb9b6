package streams_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestAddNeverMakesTheStream(t *testing.T) {
	t.Parallel()
	f := open(t, devtest.Redis(t))
	for _, a := range f.Add(t.Context(), stream, [][]any{{"n", 1}, {"n", 2}}) {
		if !errors.Is(a.Err, streams.ErrNoStream) || a.ID != "" {
			t.Errorf("adding to no stream: id %q, error %v, want ErrNoStream", a.ID, a.Err)
		}
		if streams.Ambiguous(a.Err) {
			t.Error("ErrNoStream counts as ambiguous: the entry is certain not to be there")
		}
	}
	if n := f.raw.Exists(t.Context(), stream).Val(); n != 0 {
		t.Error("the stream was made")
	}
	if a := f.Append(t.Context(), stream, [][]any{{"n", 1}})[0]; a.Err != nil || a.ID == "" {
		t.Errorf("Append makes the stream: id %q, error %v", a.ID, a.Err)
	}
}

// Errors that the server replied are definite; all others leave open whether
// the entry was added.
func TestAmbiguous(t *testing.T) {
	t.Parallel()
	f := open(t, startRedis(t))
	ctx := t.Context()
	if err := f.raw.Set(ctx, "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	wrong := f.Append(ctx, "text", [][]any{{"n", 1}})[0].Err
	if wrong == nil || streams.Ambiguous(wrong) || streams.Full(wrong) || streams.LostGroup(wrong) {
		t.Errorf("XADD to a string: %v; want a definite error", wrong)
	}
	if err := f.raw.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	full := f.Append(ctx, stream, [][]any{{"n", 1}})[0].Err
	if full == nil || streams.Ambiguous(full) || !streams.Full(full) {
		t.Errorf("XADD without memory: %v; want a definite error, Full", full)
	}
	p := chaosproxy.Redis(t, f.url)
	g := open(t, p.URL)
	p.Down(true)
	if down := g.Append(ctx, stream, [][]any{{"n", 1}})[0].Err; !streams.Ambiguous(down) {
		t.Errorf("XADD without a connection: %v; want it ambiguous", down)
	}
	if streams.Ambiguous(nil) {
		t.Error("no error counts as ambiguous")
	}
}

// The reply to a pipeline of XADDs is lost. The client must not send it again,
// and must not claim to know what happened.
func TestLostXADDReplyAddsNothingTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ forward, arrive int }{
		"none arrived": {0, 0}, "some arrived": {7, 7}, "all arrived": {-1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := devtest.Redis(t)
			direct, _ := setUp(t, url, 0)
			p := chaosproxy.Redis(t, url)
			f := open(t, p.URL)
			if err := f.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("xadd"), Forward: c.forward})
			values := make([][]any, 20)
			for i := range values {
				values[i] = []any{"n", i}
			}
			for i, a := range f.Add(t.Context(), stream, values) {
				if !streams.Ambiguous(a.Err) {
					t.Fatalf("entry %d: id %q, error %v; want an ambiguous error", i, a.ID, a.Err)
				}
			}
			<-lost
			if n := direct.info(t).Length; int(n) != c.arrive {
				t.Errorf("%d entries in the stream, want %d", n, c.arrive)
			}
		})
	}
}

// After a read whose reply was lost, the consumer's history has every entry.
func TestLostReadReplyIsFoundInTheHistory(t *testing.T) {
	t.Parallel()
	url := devtest.Redis(t)
	direct, want := setUp(t, url, 30)
	p := chaosproxy.Redis(t, url)
	f := open(t, p.URL)
	lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("xreadgroup"), Forward: -1})
	if es, err := f.Read(t.Context(), stream, group, "c", streams.Fresh, 10); err == nil {
		t.Fatalf("a read without a reply returned %d entries and no error", len(es))
	}
	<-lost
	if n := direct.info(t).Pending; n != 10 {
		t.Fatalf("%d pending, want the 10 of the one read: the client must not read again by itself", n)
	}
	var got []string
	for from := streams.History; ; {
		es, err := f.Read(t.Context(), stream, group, "c", from, 4)
		if err != nil {
			t.Fatal(err)
		}
		if len(es) == 0 {
			break
		}
		got = append(got, ids(es)...)
		from = es[len(es)-1].ID
	}
	equal(t, "history", got, want[:10])
	equal(t, "fresh", f.take(t, "c", 20), want[10:])
}

func TestReadShowsDeletedEntriesWithoutValues(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 2)
	f.take(t, "c", 2)
	if err := f.raw.XDel(t.Context(), stream, all[0]).Err(); err != nil {
		t.Fatal(err)
	}
	es, err := f.Read(t.Context(), stream, group, "c", streams.History, 10)
	if err != nil || len(es) != 2 || es[0].Values != nil || es[1].Values["n"] != "1" {
		t.Errorf("history is %v, %v; want a deleted entry without values, and the other", es, err)
	}
}

// Every way in which a reader can learn that its group is gone.
func TestLostGroup(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(f *fixture) error{
		"DEL":            func(f *fixture) error { return f.raw.Del(t.Context(), stream).Err() },
		"FLUSHALL":       func(f *fixture) error { return f.raw.FlushAll(t.Context()).Err() },
		"XGROUP DESTROY": func(f *fixture) error { return f.raw.XGroupDestroy(t.Context(), stream, group).Err() },
		"another type": func(f *fixture) error {
			_, err := f.raw.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Del(t.Context(), stream)
				p.XGroupCreateMkStream(t.Context(), stream, "other", "0")
				return nil
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := setUp(t, startRedis(t), 0)
			blocked := make(chan error, 1)
			go func() {
				var err error
				for end := time.Now().Add(testkit.Deadline); err == nil && time.Now().Before(end); {
					_, err = f.Read(t.Context(), stream, group, "c", streams.Fresh, 1)
				}
				blocked <- err
			}()
			testkit.Eventually(t, "the reader blocks", func() (bool, string) {
				list := f.raw.ClientList(t.Context()).Val()
				return chaosproxy.Has("flags=b")([]byte(list)), list
			})
			if err := lose(f); err != nil {
				t.Fatal(err)
			}
			if err := <-blocked; !streams.LostGroup(err) {
				t.Errorf("blocked reader: %v is not recognised", err)
			}
			f.checkLost(t)
		})
	}
	if streams.LostGroup(nil) || streams.LostGroup(errors.New("EOF")) {
		t.Error("LostGroup of nil or of a broken connection")
	}
}

func (f *fixture) checkLost(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	_, read := f.ReadNow(ctx, stream, group, "c", 1)
	_, history := f.Read(ctx, stream, group, "c", streams.History, 1)
	_, _, _, claim := f.Claim(ctx, stream, group, "c", "", 0)
	_, _, pending := f.PendingAfter(ctx, stream, group, "", 0)
	_, oldest := f.OldestPending(ctx, stream, group)
	_, info := f.Info(ctx, stream, group)
	wait := f.WaitApplied(ctx, stream, group)
	_, renew := f.Renew(ctx, stream, group, "c", []string{"1-1"})
	for what, err := range map[string]error{
		"XREADGROUP": read, "history": history, "Claim": claim, "PendingAfter": pending, "OldestPending": oldest,
		"Info": info, "WaitApplied": wait, "Renew": renew,
	} {
		if !streams.LostGroup(err) {
			t.Errorf("%s: %v is not recognised as a lost group", what, err)
		}
	}
	if owned, err := f.Owned(ctx, stream, group, "c", []string{"1-1", "2-2"}); err != nil || owned[0] != streams.Gone || owned[1] != streams.Gone {
		t.Errorf("Owned without a group: %v, %v; want all Gone", owned, err)
	}
	if left, err := f.LeaveGroup(ctx, stream, group, "c"); err != nil || !left {
		t.Errorf("LeaveGroup without a group: %t, %v", left, err)
	}
}

// An entry is acknowledged only if its outcome was added.
func TestAppendAndAck(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 3)
	ctx := t.Context()
	f.take(t, "c", 3)
	acks := []streams.Ack{{Stream: stream, Group: group, ID: all[0]}, {}, {Stream: stream, Group: group, ID: all[2]}}
	for i, err := range f.AppendAndAck(ctx, "out", [][]any{{"a", 1}, {"a", 2}, {"a", 3}}, acks) {
		if err != nil {
			t.Errorf("outcome %d: %v", i, err)
		}
	}
	if ps, _, _ := f.PendingAfter(ctx, stream, group, "", 0); len(ps) != 1 || ps[0].ID != all[1] {
		t.Errorf("pending: %v, want only %s", ps, all[1])
	}
	if err := f.raw.Set(ctx, "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := f.AppendAndAck(ctx, "text", [][]any{{"a", 1}}, []streams.Ack{{Stream: stream, Group: group, ID: all[1]}})[0]; err == nil {
		t.Error("an outcome that was refused reports success")
	}
	if n := f.info(t).Pending; n != 1 {
		t.Error("the entry was acknowledged although its outcome was not added")
	}
}

func TestConcurrentAdders(t *testing.T) {
	t.Parallel()
	f, _ := setUp(t, devtest.Redis(t), 0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { f.add(t, 100) })
	}
	wg.Wait()
	if i := f.info(t); i.Length != 800 || i.Undelivered != 800 {
		t.Errorf("after 800 entries: %+v", i)
	}
}
