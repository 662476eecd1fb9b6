// Package pgid lets protocol.ID travel to and from Postgres as a uuid without
// a detour over text.
package pgid

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/penstock-dev/penstock/protocol"
)

// ID is a protocol.ID as a Postgres uuid.
type ID protocol.ID

// UUIDValue implements pgtype.UUIDValuer.
func (id ID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner; null becomes the zero id.
func (id *ID) ScanUUID(v pgtype.UUID) error {
	*id = v.Bytes
	return nil
}

// Slice converts ids for a uuid[] parameter.
func Slice(ids []protocol.ID) []ID {
	out := make([]ID, len(ids))
	for i, id := range ids {
		out[i] = ID(id)
	}
	return out
}

// IDs converts ids read from a uuid[] or several rows.
func IDs(ids []ID) []protocol.ID {
	out := make([]protocol.ID, len(ids))
	for i, id := range ids {
		out[i] = protocol.ID(id)
	}
	return out
}
