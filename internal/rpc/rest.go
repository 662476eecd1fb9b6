package rpc

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// restPrefix begins the paths of the REST API.
const restPrefix = "/api/v1/"

// maxErrorBody bounds how much of an error's body is kept; errors are short.
const maxErrorBody = 1 << 20

// restHandler prepares REST calls for the transcoder and turns the errors that
// come back into problem+json.
type restHandler struct {
	transcoder http.Handler
	routes     routes
	log        *slog.Logger
	limits     limits
	gate       connect.RequestGateFunc
}

// ServeHTTP implements http.Handler.
func (h *restHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.ReplaceAll(r.URL.EscapedPath(), ":", "%3A")
	found := h.routes.find(r.Method, path)
	limit := int64(h.limits.message)
	if found != nil {
		limit = int64(h.limits.of(found.method.Input()))
		ctx, err := h.admit(r, found)
		if err != nil {
			WriteProblem(w, err)
			return
		}
		r = r.WithContext(ctx)
		// A form of another site has none that is.
		if r.ContentLength != 0 && !bodyless(r.Method) && !isJSON(r.Header.Values("Content-Type")) {
			newProblem(http.StatusUnsupportedMediaType, "send JSON with Content-Type: application/json", nil).write(w)
			return
		}
	}
	if p := refuse(r, limit); p != nil {
		p.write(w)
		return
	}
	if p := found.repeated(r.URL.Query()); p != nil {
		p.write(w)
		return
	}
	out := prepare(r, found.resolve(path))
	body, packed, p := plainBody(w, r, limit)
	switch {
	case p != nil:
		p.write(w)
		return
	case found == nil: // only to be told so
		out.Body, out.ContentLength = http.NoBody, 0
	case body != nil:
		out.Body, out.ContentLength = body, -1
		out.Header.Del("Content-Encoding")
		out.Header.Del("Content-Length")
	}
	rw := &restWriter{ResponseWriter: w, log: h.log, request: r, limit: limit, packed: packed}
	h.transcoder.ServeHTTP(rw, out)
	rw.finish()
}

// admit asks the gate before anything of the body is read.
func (h *restHandler) admit(r *http.Request, found *route) (context.Context, error) {
	spec := connect.Spec{Procedure: found.procedure(), Schema: found.method, StreamType: connect.StreamTypeUnary}
	return h.gate(r.Context(), spec, connect.Peer{Addr: r.RemoteAddr, Protocol: connect.ProtocolConnect}, r.Header)
}

// plainBody returns the body without its compression, which ends with an error
// once it is longer than limit.
func plainBody(w http.ResponseWriter, r *http.Request, limit int64) (io.ReadCloser, *gunzipped, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil, nil
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	switch encoding := strings.Join(r.Header.Values("Content-Encoding"), ","); strings.ToLower(encoding) {
	case "", "identity":
		return body, nil, nil
	case "gzip":
		packed := &gunzipped{compressed: body}
		return http.MaxBytesReader(w, packed, limit), packed, nil
	default:
		return nil, nil, newProblem(http.StatusUnsupportedMediaType, "send the body with Content-Encoding: gzip, or without one", nil)
	}
}

// gunzipped unpacks a body as it is read.
type gunzipped struct {
	compressed io.ReadCloser
	plain      *gzip.Reader
	bad        bool // it is no gzip
}

func (g *gunzipped) Read(p []byte) (int, error) {
	if g.plain == nil {
		plain, err := gzip.NewReader(g.compressed)
		if err != nil {
			return 0, g.judge(err)
		}
		g.plain = plain
	}
	n, err := g.plain.Read(p)
	return n, g.judge(err)
}

func (g *gunzipped) judge(err error) error {
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) {
		g.bad = true
	}
	return err
}

func (g *gunzipped) Close() error { return g.compressed.Close() }

// refuse checks what the transcoder would pass over in silence or answer with
// an internal error. It returns nil if the request may go on.
func refuse(r *http.Request, limit int64) *problem {
	if !utf8.ValidString(r.URL.Path) {
		return badRequest("", "the path is not valid UTF-8")
	}
	if r.URL.RawQuery != "" {
		if p := refuseQuery(r); p != nil {
			return p
		}
	}
	if bodyless(r.Method) && r.ContentLength != 0 {
		return badRequest("", r.Method+" takes no body")
	}
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	return nil
}

// bodyless reports whether calls with a method are described by their path and
// query alone.
func bodyless(method string) bool { return method == http.MethodGet || method == http.MethodDelete }

// refuseQuery checks the query string. Calls that have a body are described by
// it and take none.
func refuseQuery(r *http.Request) *problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest("", "the query string is malformed: "+err.Error())
	}
	for name, values := range query {
		if !utf8.ValidString(name) || slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) }) {
			return badRequest("", "the query string is not valid UTF-8")
		}
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		return badRequest("", "this call takes no query parameters; put them in the body")
	}
	return nil
}

// tooLarge is the problem of a request over the limit.
func tooLarge(limit int64) *problem {
	detail := fmt.Sprintf("the request is larger than %d bytes", limit)
	return newProblem(http.StatusRequestEntityTooLarge, detail, &penstockv1.ErrorInfo{
		Code: string(protocol.CodeInputInvalid), Message: detail,
	})
}

// prepare returns a copy of r as the transcoder needs it. The transcoder
// splits the decoded path and decodes each part once more, and takes what
// follows a colon for a verb; so it gets the path as it was sent, with colons
// escaped, and an id may hold any character.
func prepare(r *http.Request, path string) *http.Request {
	out := new(http.Request)
	*out = *r
	u := *r.URL
	u.Path = path
	u.RawPath = ""
	out.URL = &u
	out.Header = r.Header.Clone()
	out.Header.Del("Connect-Protocol-Version") // this is REST, whatever the caller's client adds
	if bodyless(r.Method) {
		out.Header.Del("Content-Type")
	} else if isJSON(r.Header.Values("Content-Type")) {
		out.Header.Set("Content-Type", "application/json")
	}
	return out
}

// isJSON reports whether the only content type is JSON in UTF-8, however it is
// spelled.
func isJSON(contentTypes []string) bool {
	if len(contentTypes) != 1 {
		return false
	}
	mediaType, params, err := mime.ParseMediaType(contentTypes[0])
	if err != nil || mediaType != "application/json" {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

// restWriter passes a response through unless it is an error, which it holds
// back until finish.
type restWriter struct {
	http.ResponseWriter

	log     *slog.Logger
	request *http.Request
	limit   int64
	packed  *gunzipped // nil: the body is not packed
	started bool
	status  int // of an error; 0: none
	body    bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (w *restWriter) WriteHeader(status int) {
	switch {
	case w.started || w.status != 0:
	case status >= http.StatusBadRequest:
		w.status = status
	default:
		w.started = status >= http.StatusOK
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *restWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.started = true
		return w.ResponseWriter.Write(p)
	}
	if room := maxErrorBody - w.body.Len(); room > 0 {
		w.body.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Flush implements http.Flusher, which the transcoder needs.
func (w *restWriter) Flush() {
	if w.status == 0 {
		w.started = true
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// finish sends the error that was held back, if any.
func (w *restWriter) finish() {
	if w.status == 0 {
		return
	}
	if w.packed != nil && w.packed.bad {
		badRequest("", "the body is not valid gzip, as Content-Encoding says").write(w.ResponseWriter)
		return
	}
	if allow := w.Header().Get("Allow"); allow != "" {
		methods := strings.Split(allow, ",")
		slices.Sort(methods)
		w.Header().Set("Allow", strings.Join(methods, ", "))
	}
	switch mediaType, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type")); mediaType {
	case problemType:
		w.ResponseWriter.WriteHeader(w.status)
		_, _ = w.ResponseWriter.Write(w.body.Bytes())
	case "application/json":
		w.rpcProblem().write(w.ResponseWriter)
	default:
		w.routeProblem().write(w.ResponseWriter)
	}
}

// routeProblem describes an error from before there was a call.
func (w *restWriter) routeProblem() *problem {
	detail := strings.TrimSpace(w.body.String())
	switch w.status {
	case http.StatusNotFound:
		return notFound()
	case http.StatusMethodNotAllowed:
		detail = "the path does not take " + w.request.Method
	case http.StatusUnsupportedMediaType:
		if !isJSON(w.request.Header.Values("Content-Type")) {
			detail = "send JSON with Content-Type: application/json"
		}
	case http.StatusBadRequest:
		return badRequest("", detail)
	}
	return newProblem(w.status, detail, nil)
}

// Texts of the transcoder's errors about query parameters.
var (
	badParameter     = regexp.MustCompile(`^invalid parameter "([^"]+)"`)
	unknownParameter = regexp.MustCompile(`in field path "([^"]+)":`)
)

// rpcProblem describes the error of a call, which the transcoder writes as a
// google.rpc.Status. One without ErrorInfo comes from the transport.
func (w *restWriter) rpcProblem() *problem {
	var st status.Status
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(w.body.Bytes(), &st); err != nil {
		return w.internal("the error of a call cannot be read", err.Error())
	}
	code := connect.Code(st.GetCode()) //nolint:gosec // a code the transcoder wrote
	for _, detail := range st.GetDetails() {
		var info penstockv1.ErrorInfo
		if detail.MessageIs(&info) && detail.UnmarshalTo(&info) == nil {
			return problemOf(code, st.GetMessage(), &info)
		}
	}
	text := st.GetMessage()
	if match := badParameter.FindStringSubmatch(text); match != nil {
		return badRequest(match[1], "the query parameter has a wrong value")
	}
	if match := unknownParameter.FindStringSubmatch(text); match != nil {
		return badRequest(match[1], "there is no such query parameter")
	}
	switch code {
	case connect.CodeResourceExhausted:
		if strings.HasPrefix(text, "max buffer size") {
			return w.internal("the response is too large", text)
		}
		return tooLarge(w.limit)
	case connect.CodeInvalidArgument:
		return badRequest("", text)
	case connect.CodeInternal, connect.CodeUnknown:
		if w.request.Context().Err() != nil {
			return problemOf(connect.CodeCanceled, textCanceled, nil)
		}
		return w.internal("a call failed in the transport", text)
	default:
		return problemOf(code, text, nil)
	}
}

// internal logs what happened and returns a problem that does not tell.
func (w *restWriter) internal(what, text string) *problem {
	w.log.LogAttrs(w.request.Context(), slog.LevelError, "rpc: "+what,
		slog.String("method", w.request.Method), slog.String("path", w.request.URL.Path), slog.String("error", text))
	return problemOf(connect.CodeInternal, textInternal, nil)
}
