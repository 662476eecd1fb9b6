package api

import "time"

// TokenFor makes a page_token of a request.
func TokenFor(m paged, at time.Time, id string, n int32, key ...string) string {
	return tokenFor(m, cursor{At: at, ID: id, N: n, Key: key})
}

// LookRows is how many rows a call looks at.
const LookRows = lookRows
