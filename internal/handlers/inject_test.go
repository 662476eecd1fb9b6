package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
)

func TestInjectDeclaration(t *testing.T) {
	t.Parallel()
	for _, h := range []config.Handler{{Kind: "inject"}, {Kind: "inject", SimulateRestart: true}} {
		if th, err := New("a", h, config.HTTPClient{}, nil); th == nil || err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
	_, err := New("a", config.Handler{Kind: "echo", SimulateRestart: true}, config.HTTPClient{}, nil)
	wantText(t, err, "handlers.a.simulate_restart: does not apply to kind echo")
	_, err = New("a", config.Handler{Kind: "inject", MaxOutputBytes: 1, URL: "u"}, config.HTTPClient{}, nil)
	wantText(t, err, "handlers.a.url: does not apply to kind inject", "max_output_bytes: does not apply")
}

// Every payload that must be refused names the key that is wrong.
func TestInjectRefusesPayloads(t *testing.T) {
	t.Parallel()
	th := mustNew(t, config.Handler{Kind: "inject"}, config.HTTPClient{})
	for payload, want := range map[string]string{
		`{"mode":"explode"}`:                             `mode is "explode", want timeout, transient_error, permanent_error or process_restart_interrupt`,
		`{"mode":7}`:                                     "mode can't be a number",
		`{"mode":""}`:                                    `mode is ""`,
		`{"mod":"timeout"}`:                              `unknown field "mod"`,
		`{"mode":"timeout","times":0}`:                   "times is 0",
		`{"mode":"timeout","times":-1}`:                  "times is -1",
		`{"mode":"timeout","times":1.5}`:                 "times can't be a number 1.5",
		`{"mode":"timeout","times":"1"}`:                 "times can't be a string",
		`{"mode":"timeout","attempts":[]}`:               "attempts is empty",
		`{"mode":"timeout","attempts":[1,0]}`:            "attempts has 0",
		`{"mode":"timeout","attempts":1}`:                "attempts can't be a number",
		`{"mode":"timeout","attempts":["x"]}`:            "attempts can't be a string",
		`{"mode":"timeout","probability":0}`:             "probability is 0",
		`{"mode":"timeout","probability":2}`:             "probability is 2",
		`{"mode":"timeout","probability":-0.5}`:          "probability is -0.5",
		`{"mode":"timeout","probability":0.5,"seed":-1}`: "seed can't be a number -1",
		`{"mode":"timeout","times":1,"seed":1}`:          "seed is for probability only",
		`{"mode":"timeout","text":"boom"}`:               "text is set",
		`{"mode":"timeout","text":1}`:                    "text can't be a number",
		`{"mode":"timeout","work_ms":-1}`:                "work_ms is -1, want 0 to 86400000",
		`{"work_ms":86400001}`:                           "work_ms is 86400001",
		`{"work_ms":"1s"}`:                               "work_ms can't be a string",
		`{"times":2}`:                                    "mode is missing, but times is set",
		`{"text":"boom"}`:                                "mode is missing, but text is set",
		`{}{}`:                                           "more than one JSON value",
		`[]`:                                             "payload is no object",
		`"timeout"`:                                      "payload is no object",
		`{`:                                              "payload is no object",
	} {
		out := tasktest.RunRaw(t, "inject", th, json.RawMessage(payload))
		if out.Kind != tasktest.Failed || out.Code != "TASK_INPUT_INVALID" || out.Retryable || !strings.HasPrefix(out.Message, "inject: ") || !strings.Contains(out.Message, want) {
			t.Errorf("%s: %s, want %q", payload, out, want)
		}
	}
}

func TestInjectFailsAsThePayloadSays(t *testing.T) {
	t.Parallel()
	th := mustNew(t, config.Handler{Kind: "inject", SimulateRestart: true}, config.HTTPClient{})
	for payload, want := range map[string][4]string{ // of deliveries 1 to 4; the second follows an interruption
		``:                                     {"ok", "ok", "ok", "ok"},
		`null`:                                 {"ok", "ok", "ok", "ok"},
		`{"mode":null,"work_ms":1}`:            {"ok", "ok", "ok", "ok"},
		`{"mode":"transient_error"}`:           {"retrying", "retrying", "retrying", "retrying"},
		`{"mode":"transient_error","times":2}`: {"retrying", "retrying", "ok", "ok"},
		`{"mode":"transient_error","attempts":[1]}`:                                {"retrying", "retrying", "ok", "ok"},
		`{"mode":"transient_error","attempts":[2],"times":1,"text":"away"}`:        {"retrying", "ok", "retrying", "ok"},
		`{"mode":"permanent_error"}`:                                               {"dlq_pending", "dlq_pending", "dlq_pending", "dlq_pending"},
		`{"mode":"timeout","times":1}`:                                             {"retrying", "ok", "ok", "ok"},
		`{"mode":"process_restart_interrupt","times":1}`:                           {"interrupted", "ok", "ok", "ok"},
		`{"mode":"transient_error","probability":1}`:                               {"retrying", "retrying", "retrying", "retrying"},
		`{"mode":"transient_error","probability":0.3,"seed":18446744073709551615}`: {"retrying", "retrying", "retrying", "ok"},
	} {
		for i, attempt := range []int{1, 1, 2, 3} {
			out := tasktest.RunRaw(t, "inject", th, json.RawMessage(payload), tasktest.TaskID("a"), tasktest.Attempt(attempt),
				tasktest.Delivery(int64(i+1)), tasktest.Timeout(20*time.Millisecond))
			got := out.State
			if string(out.Result) == fmt.Sprintf(`{"attempt":%d,"task_id":"a"}`, attempt) {
				got = "ok"
			}
			if got != want[i] || got != "ok" && !errors.Is(out.Err, inject.ErrInjected) {
				t.Errorf("%s, delivery %d: %s, want %s", payload, i+1, out, want[i])
			}
			if strings.Contains(payload, "away") && got != "ok" && out.Message != "away" {
				t.Errorf("%s: the text is %q", payload, out.Message)
			}
		}
	}
}

func TestInjectWorksFirst(t *testing.T) {
	t.Parallel()
	th := mustNew(t, config.Handler{Kind: "inject", SimulateRestart: true}, config.HTTPClient{})
	synctest.Test(t, func(t *testing.T) {
		for payload, want := range map[string]time.Duration{
			`{"work_ms":1500}`:                                     1500 * time.Millisecond,
			`{"work_ms":1500,"mode":"transient_error"}`:            1500 * time.Millisecond,
			`{"work_ms":1500,"mode":"process_restart_interrupt"}`:  1500 * time.Millisecond,
			`{"work_ms":1500,"mode":"timeout"}`:                    time.Minute,
			`{"work_ms":90000}`:                                    time.Minute, // its own timeout
			`{"work_ms":90000,"mode":"process_restart_interrupt"}`: time.Minute,
		} {
			began := time.Now()
			out := tasktest.RunRaw(t, "inject", th, json.RawMessage(payload), tasktest.Timeout(time.Minute))
			if took := time.Since(began); took != want || (want == time.Minute) != (out.Code == "TASK_TIMEOUT") {
				t.Errorf("%s: %s after %s, want %s", payload, out, took, want)
			}
		}
	})
	if out := tasktest.RunRaw(t, "inject", th, json.RawMessage(`{"work_ms":90000}`), tasktest.Cancelled(task.ErrShutdown)); out.Kind != tasktest.Released {
		t.Errorf("a stopping worker: %s", out)
	}
}

// A task that was stopped before its work was done kills nothing, nor does one
// that is not chosen.
func TestInjectKillsOnlyAfterItsWork(t *testing.T) {
	t.Parallel()
	th := mustNew(t, config.Handler{Kind: "inject"}, config.HTTPClient{})
	out := tasktest.RunRaw(t, "inject", th, json.RawMessage(`{"mode":"process_restart_interrupt","work_ms":9000}`), tasktest.Cancelled(task.ErrShutdown))
	if out.Kind != tasktest.Released {
		t.Errorf("cancelled while it worked: %s", out)
	}
	out = tasktest.RunRaw(t, "inject", th, json.RawMessage(`{"mode":"process_restart_interrupt","times":1}`), tasktest.Delivery(2))
	if out.Kind != tasktest.Succeeded {
		t.Errorf("not chosen: %s", out)
	}
}
