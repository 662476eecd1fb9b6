package rpc

import (
	"net/http"
	"strings"
	"testing"
)

// PUT takes its whole body and DELETE none; both find their RPC, which does
// nothing here.
func TestPutAndDelete(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeService{}, Options{})
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPut, "/api/v1/guard/rules/big", "{}", http.StatusNotImplemented},
		{http.MethodPut, "/api/v1/guard/rules/big?name=x", "{}", http.StatusBadRequest},
		{http.MethodPut, "/api/v1/guard/rules/big", "{", http.StatusBadRequest},
		{http.MethodDelete, "/api/v1/guard/rules/big", "", http.StatusNotImplemented},
		{http.MethodDelete, "/api/v1/guard/rules/a:b%2Fc", "", http.StatusNotImplemented},
		{http.MethodDelete, "/api/v1/guard/rules/big", "{}", http.StatusBadRequest},
		{http.MethodPatch, "/api/v1/guard/rules/big", "{}", http.StatusMethodNotAllowed},
		{http.MethodDelete, "/api/v1/tasks/x", "", http.StatusMethodNotAllowed},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, s.url+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if tc.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %s: %d %s, want %d", tc.method, tc.path, tc.body, resp.StatusCode, resp.Header.Get("Content-Type"), tc.status)
		}
	}
}
