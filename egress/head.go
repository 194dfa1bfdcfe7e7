package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/boxd/boxd/egress/rules"
)

const (
	maxHead    = 32 << 10 // bytes of a request head
	maxHeaders = 128
	maxTrailer = 8 << 10
)

// head is the request line and the headers of a request. Two programs that read the same
// bytes must see the same request, so whatever RFC 9112 lets a server repair is an error.
type head struct {
	method string
	uri    string // as it was sent
	minor  int    // HTTP/1.minor, 0 or 1
	host   string // the Host header; "" if there is none
	length int64  // of the body; -1 if it is chunked
	close  bool   // the client wants no further request on the connection
	expect bool   // the client waits for 100 Continue
	// webSocket means that the client wants to speak WebSocket (RFC 6455, section 4.1) instead of HTTP.
	webSocket bool
	header    http.Header
	size      int64 // bytes of the head
}

// badRequest says what is wrong with a request.
type badRequest string

func (e badRequest) Error() string { return "the request is not valid: " + string(e) }

// readHead reads a request head from br. Errors are a badRequest, or of the connection.
func readHead(br *bufio.Reader) (*head, error) {
	h := &head{minor: -1, header: http.Header{}}
	var connection []string
	hosts, lengths, codings, lines := 0, 0, 0, 0
	for {
		line, err := readLine(br, maxHead-h.size)
		if err != nil {
			return nil, err
		}
		h.size += int64(len(line)) + 2
		if h.minor < 0 {
			if err := h.requestLine(line); err != nil {
				return nil, err
			}
			continue
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if lines++; !ok || !rules.IsToken(name) || lines > maxHeaders {
			return nil, badRequest("a header line is malformed, or there are more than 128")
		}
		value = strings.Trim(value, " \t")
		switch name = textproto.CanonicalMIMEHeaderKey(name); name {
		case "Host":
			h.host = value
			hosts++
		case "Content-Length":
			lengths++
			if h.length, err = parseLength(value); err != nil {
				return nil, err
			}
		case "Transfer-Encoding":
			codings++
			if !strings.EqualFold(value, "chunked") {
				return nil, badRequest(`Transfer-Encoding is not "chunked"`)
			}
		case "Expect":
			if h.expect = strings.EqualFold(value, "100-continue"); !h.expect {
				return nil, badRequest("Expect is unknown")
			}
		case "Connection", "Proxy-Connection":
			for token := range strings.SplitSeq(value, ",") {
				connection = append(connection, strings.ToLower(strings.Trim(token, " \t")))
			}
		case "Upgrade": // of other protocols, such as h2c, the server may take no notice
			h.webSocket = h.webSocket || strings.EqualFold(value, "websocket")
		default:
			if !rules.IsFraming(name) {
				h.header[name] = append(h.header[name], value)
			}
		}
	}
	switch {
	case hosts > 1 || hosts == 0 && h.minor == 1:
		return nil, badRequest("it must have exactly one Host header")
	case lengths > 1 || codings > 1 || lengths+codings > 1:
		return nil, badRequest("the length of its body is given twice")
	case codings > 0 && h.minor == 0:
		return nil, badRequest("HTTP/1.0 has no Transfer-Encoding")
	case codings > 0:
		h.length = -1
	}
	h.close = slices.Contains(connection, "close") || h.minor == 0 && !slices.Contains(connection, "keep-alive")
	for _, token := range connection {
		h.header.Del(token)
	}
	h.expect = h.expect && h.minor == 1 && h.length != 0
	return h, nil
}

// requestLine reads METHOD SP URI SP HTTP/1.x.
func (h *head) requestLine(line string) error {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !rules.IsToken(parts[0]) || len(parts[0]) > 32 || parts[1] == "" || strings.ContainsAny(parts[1], "\t#\\") {
		return badRequest("its first line is malformed")
	}
	switch parts[2] {
	case "HTTP/1.0":
		h.minor = 0
	case "HTTP/1.1":
		h.minor = 1
	default:
		return badRequest("its version is not HTTP/1.0 or HTTP/1.1")
	}
	h.method, h.uri = parts[0], parts[1]
	for _, c := range []byte(h.uri) {
		if c >= 0x7f {
			return badRequest("its URI is not ASCII")
		}
	}
	return nil
}

func parseLength(s string) (n int64, err error) {
	if s == "" || len(s) > 18 {
		return 0, badRequest("Content-Length is not a number")
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, badRequest("Content-Length is not a number")
		}
		n = 10*n + int64(c-'0')
	}
	return n, nil
}

// readLine reads a line of at most room bytes that ends in CRLF, and returns it without
// that. A continuation line (obs-fold), a CR or LF elsewhere and control characters are
// errors.
func readLine(br *bufio.Reader, room int64) (string, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		if int64(len(line)+len(part)) > room {
			return "", badRequest("it is too long")
		}
		line = append(line, part...)
		if err == nil {
			break
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			return "", io.ErrUnexpectedEOF
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
	text, ok := strings.CutSuffix(string(line), "\r\n")
	if !ok {
		return "", badRequest("a line does not end in CRLF")
	}
	for i, c := range []byte(text) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return "", badRequest("a line has a control character")
		}
		if i == 0 && (c == ' ' || c == '\t') {
			return "", badRequest("a line is folded")
		}
	}
	return text, nil
}

// connectTarget returns the target of a CONNECT request, also next to an error as far as it is known.
func (h *head) connectTarget() (rules.Target, error) {
	t, err := rules.ParseAuthority(h.uri, 0)
	if err != nil {
		return t, badRequest(err.Error())
	}
	if h.length != 0 {
		return t, badRequest("CONNECT has no body")
	}
	return t, h.checkHost(t)
}

// checkHost compares the Host header, if there is one, with the target of the request.
func (h *head) checkHost(t rules.Target) error {
	if h.host == "" && h.minor == 0 {
		return nil
	}
	if other, err := rules.ParseAuthority(h.host, t.Port); err != nil || other != t {
		return badRequest(fmt.Sprintf("its Host %.80q is not %s", h.host, t))
	}
	return nil
}

// httpTarget returns the target of a request that is to be forwarded, and its path with the
// query. The URI is absolute; on a tunnel to fixed it is a path, and Host names fixed. Next to
// an error, the target is the one that the request seems to mean; zero: it names none.
func (h *head) httpTarget(fixed *rules.Target) (t rules.Target, path string, err error) {
	if fixed != nil {
		if h.uri[0] != '/' {
			return *fixed, "", badRequest("its URI is not a path")
		}
		if h.host == "" {
			return *fixed, "", badRequest("it must have exactly one Host header")
		}
		return *fixed, h.uri, h.checkHost(*fixed)
	}
	const scheme = "http://"
	if len(h.uri) < len(scheme) || !strings.EqualFold(h.uri[:len(scheme)], scheme) {
		t, _ = rules.ParseAuthority(h.host, 80)
		if strings.HasPrefix(h.uri, "/") {
			return t, "", badRequest("this is a proxy: the URI must begin with http://")
		}
		return t, "", badRequest("its URI must begin with http://; use CONNECT for everything else")
	}
	authority := h.uri[len(scheme):]
	if i := strings.IndexAny(authority, "/?"); i >= 0 {
		authority, path = authority[:i], authority[i:]
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if t, err = rules.ParseAuthority(authority, 80); err != nil {
		return t, "", badRequest(err.Error())
	}
	return t, path, h.checkHost(t)
}
