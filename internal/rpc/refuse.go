package rpc

import "net/http"

// Refuse sends an error that is about the HTTP request and has no code of the
// contract, e.g. 404 or 405, as the REST API would. detail says what was wrong
// and what to do.
func Refuse(w http.ResponseWriter, status int, detail string) {
	newProblem(status, detail, nil).write(w)
}
