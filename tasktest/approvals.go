package tasktest

import (
	"encoding/json"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// Approved has people have approved what the handler asks for under a name with
// worker.RequireApproval. Without it the outcome is Waiting.
func Approved(name string, people ...string) Option {
	return func(s *settings) {
		s.grants = append(s.grants, protocol.Grant{ApprovalID: "test", Kind: protocol.ApprovalHandler, Name: name, ApprovedBy: people, At: time.Now().UTC()})
		s.entry.Approvals, _ = json.Marshal(s.grants) // plain strings and a time
	}
}
