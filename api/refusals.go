package api

import (
	"slices"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// The codes with which operations on a box can be refused, in addition to those that follow
// from the shape of the route; see [route.refusals].
var (
	// useRefusals are those of every operation that needs the session's box.
	useRefusals = []string{apitypes.CodeDenied, apitypes.CodeQuota, apitypes.CodeState, apitypes.CodeBoxLost, apitypes.CodeBoxAtLimit}
	// makeRefusals are those of every operation that may create a session.
	makeRefusals = []string{apitypes.CodeSessionConflict, apitypes.CodeNoMountPoint, apitypes.CodeDenied, apitypes.CodeQuota, apitypes.CodeState, apitypes.CodeBoxLost}
	// runRefusals are those of every operation that runs a program.
	runRefusals = slices.Concat(useRefusals, makeRefusals, []string{
		apitypes.CodeProgramNotFound, apitypes.CodeProgramNotExecutable, apitypes.CodeNoDirectory})
	fileRefusals = slices.Concat(useRefusals, []string{apitypes.CodeFilePermission, apitypes.CodeNoFile, apitypes.CodeFileExists, apitypes.CodeFileType,
		apitypes.CodeNotEmpty, apitypes.CodeFileTooLarge, apitypes.CodeFileOperation})
)

// refusals returns the codes below 500 with which rt can answer, sorted. The tests of this
// package compare every answer with them.
func (rt *route) refusals() []string {
	codes := append([]string{apitypes.CodeBadPath, apitypes.CodeUnknownField, apitypes.CodeBodyTooLarge}, rt.fails...)
	if !rt.open {
		codes = append(codes, apitypes.CodeUnauthenticated, apitypes.CodeForbidden, apitypes.CodeInvalid, apitypes.CodeTooManyConnections)
	}
	if rt.body != nil {
		codes = append(codes, apitypes.CodeMalformed, apitypes.CodeWrongType, apitypes.CodeBodyTimeout, apitypes.CodeMediaType)
	}
	if strings.Contains(rt.path, "{id}") {
		codes = append(codes, apitypes.CodeSessionNotFound)
	}
	if strings.Contains(rt.path, "{pid}") {
		codes = append(codes, apitypes.CodeProcessNotFound)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
