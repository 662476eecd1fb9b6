package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Every RPC of the ledger refuses bad input by code and field, and stores nothing.
func TestBadInputOfEffects(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c, err := client.New(e.orch.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	id := uuid.NewString()
	reserve := func(change func(m *penstockv1.ReserveEffectRequest)) func() error {
		m := &penstockv1.ReserveEffectRequest{Id: id, Delivery: 1, WorkerId: "w", MessageId: "1-1", Name: "n", Token: id}
		change(m)
		return func() error { _, err := c.Effects().ReserveEffect(t.Context(), connect.NewRequest(m)); return err }
	}
	complete := func(change func(m *penstockv1.CompleteEffectRequest)) func() error {
		m := &penstockv1.CompleteEffectRequest{Id: id, Delivery: 1, Name: "n", Token: id}
		change(m)
		return func() error { _, err := c.Effects().CompleteEffect(t.Context(), connect.NewRequest(m)); return err }
	}
	release := func(change func(m *penstockv1.ReleaseEffectRequest)) func() error {
		m := &penstockv1.ReleaseEffectRequest{Id: id, Delivery: 1, Name: "n", Token: id}
		change(m)
		return func() error { _, err := c.Effects().ReleaseEffect(t.Context(), connect.NewRequest(m)); return err }
	}
	get := func(m *penstockv1.GetEffectRequest) func() error {
		return func() error { _, err := c.Effects().GetEffect(t.Context(), connect.NewRequest(m)); return err }
	}
	list := func(m *penstockv1.ListEffectsRequest) func() error {
		return func() error { _, err := c.Effects().ListEffects(t.Context(), connect.NewRequest(m)); return err }
	}
	resolve := func(change func(m *penstockv1.ResolveEffectRequest)) func() error {
		m := &penstockv1.ResolveEffectRequest{Key: "k", Name: "n", Resolution: "done", Reason: "r"}
		change(m)
		return func() error { _, err := c.Effects().ResolveEffect(t.Context(), connect.NewRequest(m)); return err }
	}
	long, deep := strings.Repeat("x", 10_000), []byte(strings.Repeat("[", 2000)+strings.Repeat("]", 2000))
	before := e.stored(t)
	for what, x := range map[string]struct {
		call  func() error
		field string
	}{
		"reserve: id":        {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Id = "x" }), "id"},
		"reserve: delivery":  {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Delivery = 0 }), "delivery"},
		"reserve: no worker": {reserve(func(m *penstockv1.ReserveEffectRequest) { m.WorkerId = "" }), "worker_id"},
		"reserve: worker":    {reserve(func(m *penstockv1.ReserveEffectRequest) { m.WorkerId = long }), "worker_id"},
		"reserve: message":   {reserve(func(m *penstockv1.ReserveEffectRequest) { m.MessageId = "a\x00" }), "message_id"},
		"reserve: no name":   {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Name = "" }), "name"},
		"reserve: long name": {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Name = long }), "name"},
		"reserve: name":      {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Name = "a\nb" }), "name"},
		"reserve: token":     {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Token = "x" }), "token"},
		"reserve: nil token": {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Token = uuid.Nil.String() }), "token"},
		"reserve: judges":    {reserve(func(m *penstockv1.ReserveEffectRequest) { m.Judgement = &penstockv1.EffectJudgement{Token: "x"} }), "judgement.token"},
		"reserve: judges so": {reserve(func(m *penstockv1.ReserveEffectRequest) {
			m.Judgement = &penstockv1.EffectJudgement{Token: id, Resolution: "done"}
		}), "judgement.resolution"},
		"reserve: has result": {reserve(func(m *penstockv1.ReserveEffectRequest) {
			m.Judgement = &penstockv1.EffectJudgement{Token: id, Resolution: "check_done", Result: deep}
		}), "judgement.result"},
		"complete: id":       {complete(func(m *penstockv1.CompleteEffectRequest) { m.Id = "" }), "id"},
		"complete: delivery": {complete(func(m *penstockv1.CompleteEffectRequest) { m.Delivery = -1 }), "delivery"},
		"complete: token":    {complete(func(m *penstockv1.CompleteEffectRequest) { m.Token = long }), "token"},
		"complete: large": {complete(func(m *penstockv1.CompleteEffectRequest) {
			m.Result = []byte(`"` + strings.Repeat("x", protocol.MaxEffectResult) + `"`)
		}), "result"},
		"complete: NUL":      {complete(func(m *penstockv1.CompleteEffectRequest) { m.Result = []byte(`"\u0000"`) }), "result"},
		"complete: note":     {complete(func(m *penstockv1.CompleteEffectRequest) { m.ResultNote = long }), "result_note"},
		"release: id":        {release(func(m *penstockv1.ReleaseEffectRequest) { m.Id = long }), "id"},
		"release: name":      {release(func(m *penstockv1.ReleaseEffectRequest) { m.Name = "" }), "name"},
		"release: token":     {release(func(m *penstockv1.ReleaseEffectRequest) { m.Token = "" }), "token"},
		"get: no key":        {get(&penstockv1.GetEffectRequest{Name: "n"}), "key"},
		"get: long key":      {get(&penstockv1.GetEffectRequest{Key: long, Name: "n"}), "key"},
		"get: scope":         {get(&penstockv1.GetEffectRequest{Scope: long, Key: "k", Name: "n"}), "scope"},
		"get: kind":          {get(&penstockv1.GetEffectRequest{Key: "k", KeyKind: "both", Name: "n"}), "key_kind"},
		"get: name":          {get(&penstockv1.GetEffectRequest{Key: "k", Name: long}), "name"},
		"list: state":        {list(&penstockv1.ListEffectsRequest{State: "lost"}), "state"},
		"list: scope":        {list(&penstockv1.ListEffectsRequest{Scope: long}), "scope"},
		"list: size":         {list(&penstockv1.ListEffectsRequest{PageSize: -1}), "page_size"},
		"list: token":        {list(&penstockv1.ListEffectsRequest{PageToken: "?"}), "page_token"},
		"resolve: no key":    {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Key = "" }), "key"},
		"resolve: name":      {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Name = "\x01" }), "name"},
		"resolve: kind":      {resolve(func(m *penstockv1.ResolveEffectRequest) { m.KeyKind = "KEY" }), "key_kind"},
		"resolve: as":        {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Resolution = "run_again" }), "resolution"},
		"resolve: result":    {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Result = deep }), "result"},
		"resolve: no result": {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Resolution, m.Result = "not_done", []byte("1") }), "result"},
		"resolve: no reason": {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Reason = " " }), "reason"},
		"resolve: reason":    {resolve(func(m *penstockv1.ResolveEffectRequest) { m.Reason = long }), "reason"},
	} {
		err := x.call()
		if err == nil {
			t.Errorf("%s: accepted", what)
			continue
		}
		if text := refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, x.field); len(text) > 1500 {
			t.Errorf("%s: the error has %d bytes", what, len(text))
		}
		if t.Failed() {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if after := e.stored(t); after != before {
		t.Errorf("stored %s, was %s", after, before)
	}
}
