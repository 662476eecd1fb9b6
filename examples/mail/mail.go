// Package mail defines a task type that producers and workers share.
package mail

import "github.com/penstock-dev/penstock/task"

// Email is the payload.
type Email struct{ To, Subject string }

// Send sends one email.
var Send = task.Define[Email]("email.send")
