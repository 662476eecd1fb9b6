package api

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
)

// TestListsSayWhatGetSays: a listed task has every field that one alone has, but
// those that ListTasksResponse says it is without.
func TestListsSayWhatGetSays(t *testing.T) {
	t.Parallel()
	full, row := &dbsqlc.Task{}, &dbsqlc.ListTasksRow{}
	now := time.Now()
	for i := range reflect.TypeFor[dbsqlc.Task]().NumField() {
		f := reflect.ValueOf(full).Elem().Field(i)
		name := reflect.TypeFor[dbsqlc.Task]().Field(i).Name
		switch f.Interface().(type) {
		case pgtype.Timestamptz:
			f.Set(reflect.ValueOf(pgtype.Timestamptz{Time: now.Add(time.Duration(i) * time.Second), Valid: true}))
		case time.Time:
			f.Set(reflect.ValueOf(now.Add(time.Duration(i) * time.Second)))
		case string:
			f.SetString("value of " + name)
		case *string:
			f.Set(reflect.ValueOf(new("value of " + name)))
		case int32, int64:
			f.SetInt(int64(i + 1))
		case *int32:
			f.Set(reflect.ValueOf(new(int32(i + 1))))
		case pgid.ID:
			f.Set(reflect.ValueOf(pgid.ID{byte(i), 1}))
		case *pgid.ID:
			f.Set(reflect.ValueOf(&pgid.ID{byte(i), 1}))
		case []byte, json.RawMessage:
			f.SetBytes([]byte(`{"strategy":"fixed","base_ms":5}`))
		}
		if to := reflect.ValueOf(row).Elem().FieldByName(name); to.IsValid() {
			to.Set(f.Convert(to.Type()))
		}
	}
	want, got := taskOf(full), listed(row)
	if len(want.Payload) == 0 || len(want.Result) == 0 || len(want.Progress) == 0 || want.RequestedBy == "" || want.TypeUnknownSince == nil {
		t.Fatalf("not every field was filled: %v", want)
	}
	want.Payload, want.Result, want.Progress = nil, nil, nil
	if !proto.Equal(got, want) {
		t.Errorf("listed\n%v\nalone\n%v", got, want)
	}
}
