package cli

import (
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

func decideOne(cmd *cobra.Command, w io.Writer, asJSON bool, cl penstockv1connect.ApprovalServiceClient, approve bool, id, reason string) error {
	var msg proto.Message
	var a *penstockv1.Approval
	said := "rejected: the task is cancelled"
	if approve {
		res, err := cl.Approve(cmd.Context(), connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: id, Reason: reason}))
		if err != nil {
			return err
		}
		msg, a = res.Msg, res.Msg.Approval
		switch {
		case res.Msg.Released:
			said = "approved: the task goes on"
		case res.Msg.Already:
			said = fmt.Sprintf("approved by you before; %d of %d have", len(a.ApprovedBy), a.Required)
		case a.Status == "approved":
			said = "approved: the task waits for another decision"
		default:
			said = fmt.Sprintf("%d of %d people have approved", len(a.ApprovedBy), a.Required)
		}
	} else {
		res, err := cl.Reject(cmd.Context(), connect.NewRequest(&penstockv1.RejectRequest{ApprovalId: id, Reason: reason}))
		if err != nil {
			return err
		}
		msg, a = res.Msg, res.Msg.Approval
	}
	if asJSON {
		return writeMessage(w, msg)
	}
	_, err := fmt.Fprintf(w, "%s (task %s): %s\n", a.ApprovalId, line(a.TaskId, 255), said)
	return err
}

// decideMany decides about each for itself. The error is that of the first that
// was refused.
func decideMany(cmd *cobra.Command, w io.Writer, asJSON bool, cl penstockv1connect.ApprovalServiceClient, approve bool, ids []string, reason string) error {
	var msg proto.Message
	var results []*penstockv1.DecisionResult
	if approve {
		res, err := cl.ApproveMany(cmd.Context(), connect.NewRequest(&penstockv1.ApproveManyRequest{ApprovalIds: ids, Reason: reason}))
		if err != nil {
			return err
		}
		msg, results = res.Msg, res.Msg.Results
	} else {
		res, err := cl.RejectMany(cmd.Context(), connect.NewRequest(&penstockv1.RejectManyRequest{ApprovalIds: ids, Reason: reason}))
		if err != nil {
			return err
		}
		msg, results = res.Msg, res.Msg.Results
	}
	if asJSON {
		if err := writeMessage(w, msg); err != nil {
			return err
		}
	}
	var refused error
	for _, r := range results {
		if r.Error != "" && refused == nil {
			refused = fmt.Errorf("%s: %w", r.ApprovalId, protocol.Errorf(protocol.Code(r.ErrorCode), "", "%s", r.Error))
		}
	}
	if asJSON {
		return refused
	}
	err := (&printer{w: w}).columns(func(w io.Writer) {
		_, _ = fmt.Fprintln(w, "APPROVAL ID\tSTATUS\tRELEASED\tERROR")
		for _, r := range results {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%t\t%s\n", r.ApprovalId, r.Status, r.Released, line(r.Error, 200))
		}
	})
	if err != nil {
		return err
	}
	return refused
}
