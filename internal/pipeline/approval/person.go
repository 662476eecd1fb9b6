package approval

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Person is who decides.
type Person struct {
	// Principal is the name of a token; "": nobody is known.
	Principal string
	Roles     []string
}

// roleAdmin has every role.
const roleAdmin = "admin"

// ErrNobody: the call needs a principal, and its caller is anonymous.
var ErrNobody = errors.New("an anonymous caller can't approve or reject: send a token that says who decides (auth.tokens_file)")

// ErrNotApprover: the caller is none of those who may decide about the request.
var ErrNotApprover = errors.New("is not one of those who may decide about this request")

// ErrRequester: the caller had a hand in the task.
var ErrRequester = errors.New("had a hand in this task (asked for it, rescheduled, edited or requeued it): another person must decide; to take it back, cancel the task")

// ErrAnonymousRequester: it is not known who had a hand in the task.
var ErrAnonymousRequester = errors.New("somebody had a hand in this task without a token: it may be the person who decides, so nobody can approve it. " +
	"Reject it and enqueue it with a token, or set guard.allow_anonymous")

// unknownRequester reports whether the person may be who asked for the task, as
// nobody knows who that was. Whether a side effect happened anybody may say who
// looked.
func unknownRequester(a *dbsqlc.Approval) bool {
	return a.Kind != protocol.ApprovalEffect && slices.Contains(a.Requesters, protocol.Anonymous)
}

func (p Person) anonymous() bool {
	name := protocol.Person(p.Principal)
	return name == "" || name == protocol.Anonymous
}

// is reports whether a recorded name is this person's, in whatever case.
func (p Person) is(name string) bool { return protocol.Person(name) == protocol.Person(p.Principal) }

func (p Person) notRequester(a *dbsqlc.Approval) error {
	if slices.ContainsFunc(a.Requesters, p.is) {
		return fmt.Errorf("%s %w", p.Principal, ErrRequester)
	}
	return nil
}

// may reports why the person may not decide about a request.
func (p Person) may(a *dbsqlc.Approval) error {
	if err := p.notRequester(a); err != nil {
		return err
	}
	allowed := slices.ContainsFunc(a.Approvers, func(entry string) bool {
		role, ok := strings.CutPrefix(entry, protocol.RolePrefix)
		if !ok {
			return p.is(entry)
		}
		return slices.Contains(p.Roles, role) || slices.Contains(p.Roles, roleAdmin)
	})
	if !allowed {
		return fmt.Errorf("%s %w: %s", p.Principal, ErrNotApprover, strings.Join(a.Approvers, ", "))
	}
	return nil
}
