package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

// code is one kind of error: the word that clients decide by, what HTTP makes of it,
// and what it is in words.
type code struct {
	word   string
	status int
	title  string
}

// statusVanished is what a log line and a metric call a request whose client did
// not wait for the answer; nobody sees it on the wire.
const statusVanished = 499

// The kinds of errors that begin in this package.
var (
	codeMalformed    = code{"malformed_json", http.StatusBadRequest, "The body is not JSON."}
	codeUnknownField = code{"unknown_field", http.StatusBadRequest, "A field is not known."}
	codeWrongType    = code{"wrong_type", http.StatusBadRequest, "A field is of another type."}
	codeBadPath      = code{"bad_path", http.StatusBadRequest, "The path of the URL is not in its plain form."}
	codeUnauth       = code{"unauthenticated", http.StatusUnauthorized, "Who asks is not known."}
	codeForbidden    = code{"forbidden", http.StatusForbidden, "The caller may not do this."}
	codeNoRoute      = code{"no_such_route", http.StatusNotFound, "There is nothing at this path."}
	codeMethod       = code{"method_not_allowed", http.StatusMethodNotAllowed, "The path is there, the method is not."}
	codeTooLarge     = code{"body_too_large", http.StatusRequestEntityTooLarge, "The body is too large."}
	codeBodyTimeout  = code{"body_timeout", http.StatusRequestTimeout, "The body did not arrive in time."}
	codeMediaType    = code{"unsupported_media_type", http.StatusUnsupportedMediaType, "The body is not of a type that is understood."}
	codeConnections  = code{"too_many_connections", http.StatusServiceUnavailable, "Too many relays are open."}
	codeUnavailable  = code{"unavailable", http.StatusServiceUnavailable, "The service cannot serve."}
	codeInternal     = code{"internal", http.StatusInternalServerError, "Something went wrong in the daemon."}
	codeInvalid      = code{"invalid", http.StatusUnprocessableEntity, "A value breaks a rule."}
	codeQuota        = code{"quota_exceeded", http.StatusTooManyRequests, "A quota is used up."}
	codeConflict     = code{"session_conflict", http.StatusConflict, "The live session differs from what was asked."}
	codeNotFound     = code{"not_found", http.StatusNotFound, "No such session or process."}
	codeOutputGone   = code{"output_gone", http.StatusGone, "The output of the process is lost with its box."}
	codeEnded        = code{"process_ended", http.StatusConflict, "The process has ended."}
	codeFileTooLarge = code{"file_too_large", http.StatusRequestEntityTooLarge, "The file is larger than the bound."}
	codeNotStarted   = code{"not_started", http.StatusConflict, "The process is being started."}
	codeVanished     = code{"canceled", statusVanished, "The client did not wait for the answer."}
)

// condition is an error of another package and the kind that it is here.
type condition struct {
	err error
	code
}

// conditions are looked through from the top: the first that matches counts.
var conditions = []condition{
	{session.ErrConflict, codeConflict},
	{session.ErrNotFound, codeNotFound},
	{session.ErrExists, code{"exists", http.StatusConflict, "A managed process of this id runs already."}},
	{session.ErrState, code{"bad_state", http.StatusConflict, "Not possible in this state."}},
	{session.ErrClosed, code{"shutting_down", http.StatusServiceUnavailable, "The daemon is being stopped."}},
	{session.ErrLocked, code{"shutting_down", http.StatusServiceUnavailable, "The daemon is being stopped."}},
	{session.ErrStorage, code{"storage", http.StatusInsufficientStorage, "The database could not be written; nothing was changed."}},
	{policy.ErrQuota, codeQuota},
	{policy.ErrDenied, code{"denied", http.StatusForbidden, "The policy forbids it."}},
	{engine.ErrNotFound, code{"program_not_found", http.StatusUnprocessableEntity, "The program does not exist in the box."}},
	{engine.ErrNotExecutable, code{"program_not_executable", http.StatusUnprocessableEntity, "The program cannot be executed."}},
	{engine.ErrNoDir, code{"no_such_directory", http.StatusUnprocessableEntity, "The working directory does not exist."}},
	{engine.ErrUnenforceable, code{"unenforceable", http.StatusNotImplemented, "This host cannot enforce a limit that was asked for."}},
	{engine.ErrBoxLost, code{"box_lost", http.StatusConflict, "The box was lost; the next use makes a new one."}},
	{engine.ErrNoLauncher, code{"engine_unavailable", http.StatusServiceUnavailable, "The launcher cannot be reached."}},
	{mounts.ErrNotAttached, code{"not_attached", http.StatusConflict, "Nothing is attached at this target."}},
	{mounts.ErrNoTarget, code{"no_mount_point", http.StatusUnprocessableEntity, "The mount point does not exist in the box."}},
	{engine.ErrInvalid, codeInvalid},
	{files.ErrTooLarge, codeFileTooLarge},
	{files.ErrNotRegular, code{"not_regular", http.StatusConflict, "Not a regular file."}},
	{files.ErrTimeout, code{"file_timeout", http.StatusGatewayTimeout, "The operation in the box took too long."}},
	{files.ErrProtocol, code{"box_disturbed", http.StatusBadGateway, "The box gave no valid answer."}},
	{fs.ErrNotExist, code{"no_such_file", http.StatusNotFound, "No such file in the box."}},
	{fs.ErrExist, code{"file_exists", http.StatusConflict, "The file exists."}},
	{fs.ErrPermission, code{"file_permission", http.StatusForbidden, "The user in the box may not do this."}},
	{relay.ErrNoStream, code{"no_such_stream", http.StatusNotFound, "The process has no such stream."}},
	{relay.ErrClosed, code{"shutting_down", http.StatusServiceUnavailable, "The daemon is being stopped."}},
	{context.Canceled, codeVanished},
	{context.DeadlineExceeded, code{"timeout", http.StatusGatewayTimeout, "It took too long."}},
}

// codeOf is the kind of err.
func codeOf(err error) code {
	for i := range conditions {
		if errors.Is(err, conditions[i].err) {
			return conditions[i].code
		}
	}
	return codeInternal
}
