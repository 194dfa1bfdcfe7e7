package api

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

// statusVanished is the status, in logs and metrics only, of a request whose client did not
// wait for the answer.
const statusVanished = 499

// kind is a kind of error: the code by which clients decide, its HTTP status, its title,
// and the errors of other packages that belong to it.
type kind struct {
	code   string
	status int
	title  string
	errs   []error
}

// kinds are all kinds of errors. If an error matches several, the first counts.
var kinds = []kind{
	{apitypes.CodeMalformed, http.StatusBadRequest, "The body is not JSON", nil},
	{apitypes.CodeUnknownField, http.StatusBadRequest, "A field or parameter is unknown", nil},
	{apitypes.CodeWrongType, http.StatusBadRequest, "A field has the wrong type", nil},
	{apitypes.CodeBadPath, http.StatusBadRequest, "The URL is not in its plain form", nil},
	{apitypes.CodeBodyTooLarge, http.StatusRequestEntityTooLarge, "The body is too large", nil},
	{apitypes.CodeBodyTimeout, http.StatusRequestTimeout, "The body did not arrive in time", nil},
	{apitypes.CodeMediaType, http.StatusUnsupportedMediaType, "The content type of the body is not supported", nil},
	{apitypes.CodeHTTPVersion, http.StatusHTTPVersionNotSupported, "This version of HTTP cannot carry the answer", nil},
	{apitypes.CodeUnauthenticated, http.StatusUnauthorized, "The caller is not authenticated", nil},
	{apitypes.CodeForbidden, http.StatusForbidden, "The caller may not do this", nil},
	{apitypes.CodeNoRoute, http.StatusNotFound, "There is nothing at this path", nil},
	{apitypes.CodeMethod, http.StatusMethodNotAllowed, "The path does not have this method", nil},
	{apitypes.CodeSessionNotFound, http.StatusNotFound, "No such session", nil},
	{apitypes.CodeProcessNotFound, http.StatusNotFound, "No such managed process in the session", nil},
	{apitypes.CodeVolumeNotFound, http.StatusNotFound, "The tenant has no such volume", nil},
	{apitypes.CodeVolumeExists, http.StatusConflict, "The volume exists with other limits, or is no copy of that volume", []error{session.ErrVolumeExists}},
	{apitypes.CodeVolumeInUse, http.StatusConflict, "Sessions have the volume, or it is being copied", []error{session.ErrVolumeInUse}},
	{apitypes.CodeVolumeLost, http.StatusGone, "The data of the volume is gone", []error{session.ErrVolumeLost}},
	{apitypes.CodeImagesDisabled, http.StatusNotFound, "The daemon keeps no images", nil},
	{apitypes.CodePreviewsDisabled, http.StatusNotFound, "The daemon has no host names for previews", nil},
	{apitypes.CodeImageNotPresent, http.StatusConflict, "The daemon does not have the image of the session, and the policy says not to pull it", []error{session.ErrImageNotPresent, engine.ErrNoLayer}},
	{apitypes.CodeImageNotFound, http.StatusNotFound, "Neither the daemon nor the registry has this image", []error{images.ErrUnknown}},
	{apitypes.CodeImageLogin, http.StatusUnprocessableEntity, "The registry demands a login, or another one", []error{images.ErrLogin}},
	{apitypes.CodeImageDamaged, http.StatusUnprocessableEntity, "A digest, a size or an archive of the image is wrong", []error{images.ErrCorrupt}},
	{apitypes.CodeImagePlatform, http.StatusUnprocessableEntity, "The image is for other hosts", []error{images.ErrPlatform}},
	{apitypes.CodeImageRefused, http.StatusUnprocessableEntity, "The image breaks a rule", []error{images.ErrRefused}},
	{apitypes.CodeRegistry, http.StatusBadGateway, "The registry cannot be reached, or fails", []error{images.ErrRegistry}},
	{apitypes.CodeNotFound, http.StatusNotFound, "Not found", []error{session.ErrNotFound}},
	{apitypes.CodeSessionConflict, http.StatusConflict, "The live session differs from the request", []error{session.ErrConflict}},
	{apitypes.CodeExists, http.StatusConflict, "A managed process with this ID is already running", []error{session.ErrExists}},
	{apitypes.CodePaused, http.StatusConflict, "The session is paused", []error{engine.ErrPaused}},
	{apitypes.CodeState, http.StatusConflict, "Not possible in this state", []error{session.ErrState}},
	{apitypes.CodeNotStarted, http.StatusServiceUnavailable, "The process is being started; try again", nil},
	{apitypes.CodeNotReady, http.StatusUnprocessableEntity, "The process has failed before it was ready", []error{session.ErrNotReady}},
	{apitypes.CodeProcessEnded, http.StatusConflict, "The process has ended", nil},
	{apitypes.CodeOutputGone, http.StatusGone, "The output of the process is lost", nil},
	{apitypes.CodeRelayRequest, http.StatusBadRequest, "The relay does not understand the request", nil},
	{apitypes.CodeWriterTaken, http.StatusConflict, "The process has a writer already", nil},
	{apitypes.CodeNoOffset, http.StatusRequestedRangeNotSatisfiable, "The stream has no such offset", []error{relay.ErrRange}},
	{apitypes.CodeNoStream, http.StatusNotFound, "The process has no such stream", []error{relay.ErrNoStream}},
	{apitypes.CodeShuttingDown, http.StatusServiceUnavailable, "The daemon is being stopped", []error{session.ErrClosed, relay.ErrClosed}},
	{apitypes.CodeStorage, http.StatusInsufficientStorage, "The daemon could not write its state; nothing was changed", []error{session.ErrStorage, images.ErrNoSpace}},
	{apitypes.CodeQuota, http.StatusTooManyRequests, "A quota is used up", []error{policy.ErrQuota, images.ErrQuota}},
	{apitypes.CodeRate, http.StatusTooManyRequests, "Too many of these per second", []error{policy.ErrRate}},
	{apitypes.CodeDenied, http.StatusForbidden, "The policy forbids it", []error{policy.ErrDenied}},
	{apitypes.CodeProgramNotFound, http.StatusUnprocessableEntity, "The program does not exist in the box", []error{engine.ErrNotFound}},
	{apitypes.CodeProgramNotExecutable, http.StatusUnprocessableEntity, "The program cannot be executed", []error{engine.ErrNotExecutable}},
	{apitypes.CodeBoxAtLimit, http.StatusConflict, "The box is at its limit of memory, processes or terminals", []error{engine.ErrAtLimit}},
	{apitypes.CodeNoDirectory, http.StatusUnprocessableEntity, "The working directory does not exist", []error{engine.ErrNoDir}},
	{apitypes.CodeUnenforceable, http.StatusNotImplemented, "This host cannot enforce a limit that was asked for", []error{engine.ErrUnenforceable}},
	{apitypes.CodeBoxLost, http.StatusConflict, "The box was lost; the next use creates a new one", []error{engine.ErrBoxLost}},
	{apitypes.CodeEngineUnavailable, http.StatusServiceUnavailable, "The launcher cannot be reached, or no engine can build the box", []error{engine.ErrNoLauncher, engine.ErrNoEngine}},
	{apitypes.CodeNotAttached, http.StatusConflict, "Nothing is attached at this target", []error{mounts.ErrNotAttached}},
	{apitypes.CodeNoMountPoint, http.StatusUnprocessableEntity, "The mount point does not exist in the box", []error{mounts.ErrNoTarget}},
	{apitypes.CodeInvalid, http.StatusUnprocessableEntity, "A value breaks a rule", []error{engine.ErrInvalid}},
	{apitypes.CodeTooManyConnections, http.StatusTooManyRequests, "Too many relays or requests are open", nil},
	{apitypes.CodeUnavailable, http.StatusServiceUnavailable, "The service cannot serve", nil},
	{apitypes.CodeCanceled, statusVanished, "The client did not wait for the answer", []error{context.Canceled}},
	{apitypes.CodeTimeout, http.StatusGatewayTimeout, "The request took too long", []error{context.DeadlineExceeded}},
	{apitypes.CodeInternal, http.StatusInternalServerError, "The daemon failed unexpectedly", nil},
}

// fileKinds are the kinds of errors of file operations in a box. Elsewhere the same errors
// would be about the host, and not meant for a client.
var fileKinds = []kind{
	{apitypes.CodeFileTooLarge, http.StatusRequestEntityTooLarge, "The file or directory is larger than the bound", []error{files.ErrTooLarge}},
	{apitypes.CodeFileType, http.StatusConflict, "The file is of another type", []error{files.ErrNotRegular, syscall.EISDIR, syscall.ENOTDIR}},
	{apitypes.CodeFileTimeout, http.StatusGatewayTimeout, "The operation in the box took too long", []error{files.ErrTimeout}},
	{apitypes.CodeBoxDisturbed, http.StatusBadGateway, "The box gave no valid answer", []error{files.ErrProtocol}},
	{apitypes.CodeNotEmpty, http.StatusConflict, "The directory is not empty", []error{syscall.ENOTEMPTY}},
	{apitypes.CodeNoSpace, http.StatusInsufficientStorage, "There is no space left in the box", []error{syscall.ENOSPC, syscall.EDQUOT}},
	{apitypes.CodeFilePermission, http.StatusForbidden, "The user in the box may not do this", []error{fs.ErrPermission, syscall.EROFS}},
	{apitypes.CodeNoFile, http.StatusNotFound, "No such file in the box", []error{fs.ErrNotExist}},
	{apitypes.CodeFileExists, http.StatusConflict, "The file exists", []error{fs.ErrExist}},
	{apitypes.CodeFileOperation, http.StatusConflict, "The kernel refused the operation in the box", []error{files.ErrRefused}},
}

// match returns the kind of err in list, or nil.
func match(list []kind, err error) *kind {
	for i := range list {
		for _, target := range list[i].errs {
			if errors.Is(err, target) {
				return &list[i]
			}
		}
	}
	return nil
}

// kindOf returns the kind of err. An unexpected error is internal.
func kindOf(err error) *kind {
	if own, ok := errors.AsType[*refusal](err); ok {
		return byCode(own.code)
	}
	if k := match(kinds, err); k != nil {
		return k
	}
	return byCode(apitypes.CodeInternal)
}

func byCode(code string) *kind {
	for _, list := range [][]kind{kinds, fileKinds} {
		for i := range list {
			if list[i].code == code {
				return &list[i]
			}
		}
	}
	panic("api: no kind of error has the code " + code)
}
