package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// route is one operation of the API.
type route struct {
	method, path string
	name         string // operation ID, and label of metrics
	summary      string
	role         Role // lowest role that may use it
	open         bool // it needs no credentials
	everyTenant  bool // only for callers who may see all tenants
	query        []param
	body         any    // zero value of the type of the JSON body; nil: none
	bodyOptional bool   // the JSON body may be missing
	rawBody      string // content type of a body that is not JSON
	status       int
	reply        any      // zero value of the type of the JSON answer; nil: see replyType
	replyType    string   // content type of an answer that is not, or not only, JSON
	line         any      // zero value of the type of a line of an ndjson answer; nil: an apitypes.ExecEvent
	anything     bool     // every method, path below, query and body is for the box; the rest describes GET of the path itself
	fails        []string // codes below 500, in addition to those that follow from the rest
	handler      func(*call) error
}

// param is a query parameter.
type param struct {
	name, kind, doc string // kind is the JSON type
	required        bool
	enum            []string // possible values; nil: any
}

var (
	pathParam   = param{"path", "string", "Path in the box, absolute or relative to the workspace.", true, nil}
	offsetParam = param{"offset", "integer", "Offset of the first byte.", false, nil}
	labelParam  = param{"label", "array", "Only what has this label: key=value, or key with any value; may be repeated.", false, nil}
	globParam   = param{"glob", "array", "Only what matches: *.png, src or **/*.csv, relative to path; a directory stands for everything in it. May be repeated.", false, nil}
	limitParam  = param{"limit", "integer", "Bytes at most; 0: no limit.", false, nil}

	sharedParam = param{"shared", "boolean", "The shared image, of all tenants; only for callers who may act for all of them.", false, nil}
	imageParams = []param{{"reference", "string", "The image, as people write it, or by digest.", true, nil}, sharedParam}

	historyParams = []param{{"since", "string", "Only what ended since: a duration before now, or a time of RFC 3339.", false, nil}, {"until", "string", "Only what ended before.", false, nil},
		{"verdict", "array", "Only what has this verdict; may be repeated.", false, nil}, {"output", "boolean", "With the output that is kept.", false, nil},
		{"limit", "integer", "Entries at most, up to 1000; 0: 100.", false, nil}, {"before", "integer", "Only entries with lower numbers.", false, nil}}
)

const (
	octets    = "application/octet-stream"
	tarball   = "application/x-tar"
	plainText = "text/plain; charset=utf-8"
	ndjson    = "application/x-ndjson"
	sse       = "text/event-stream"

	loginPath     = "/v1/login"
	runPath       = "/v1/run"
	sessionsPath  = "/v1/sessions"
	sessionPath   = sessionsPath + "/{id}"
	processesPath = sessionPath + "/processes"
	processPath   = processesPath + "/{pid}"
	filesPath     = sessionPath + "/files"
	portPath      = sessionPath + "/ports/{port}"
	tunnelPath    = sessionPath + "/tunnels/{port}"
	linksPath     = sessionPath + "/links"
	volumesPath   = "/v1/volumes"
	volumePath    = volumesPath + "/{name}"
	sensitivePath = "/v1/sensitive-paths"
	imagesPath    = "/v1/images"
)

// routes are all operations, in the order of the documents. Reading needs a viewer,
// changing an operator: a test has the whole matrix.
var routes = []route{
	{method: "GET", path: "/healthz", name: "healthz", summary: "Whether the daemon answers", open: true,
		status: http.StatusOK, replyType: plainText, handler: (*call).healthz},
	{method: "GET", path: "/readyz", name: "readyz", summary: "Whether daemon and engine can serve", role: Viewer,
		status: http.StatusOK, replyType: plainText, handler: (*call).readyz},
	{method: "GET", path: "/metrics", name: "metrics", summary: "Metrics for Prometheus", role: Viewer, everyTenant: true,
		status: http.StatusOK, replyType: plainText, handler: (*call).metrics},
	{method: "GET", path: "/ui", name: "page", summary: "The operator's page, for browsers; docs/ui.md describes it", open: true,
		status: http.StatusOK, replyType: "text/html", handler: (*call).page},
	{method: "GET", path: "/ui/{file}", name: "page-file", summary: "What the operator's page loads", open: true,
		status: http.StatusOK, replyType: "*/*", fails: []string{apitypes.CodeNoRoute}, handler: (*call).page},
	{method: "POST", path: loginPath, name: "login", summary: "Exchange a token for the cookie of a page", open: true,
		body: apitypes.LoginRequest{}, status: http.StatusOK, reply: apitypes.Login{}, fails: []string{apitypes.CodeUnauthenticated, apitypes.CodeForbidden, apitypes.CodeRate}, handler: (*call).login},
	{method: "GET", path: loginPath, name: "get-login", summary: "Who the caller is; renews the cookie of a page", role: Viewer,
		status: http.StatusOK, reply: apitypes.Login{}, handler: (*call).getLogin},
	{method: "DELETE", path: loginPath, name: "logout", summary: "End the login of a page", role: Viewer,
		status: http.StatusNoContent, fails: []string{apitypes.CodeState}, handler: (*call).logout},
	{method: "GET", path: "/v1/openapi.json", name: "openapi", summary: "This document", role: Viewer,
		status: http.StatusOK, replyType: "application/json", handler: (*call).document},
	{method: "GET", path: "/v1/status", name: "status", summary: "Whether the service can serve, and what it holds", role: Viewer,
		status: http.StatusOK, reply: apitypes.Status{}, handler: (*call).status},
	{method: "GET", path: "/v1/doctor", name: "doctor", summary: "What of boxd doctor the daemon can check itself; an answer is reused for ten seconds", role: Operator, everyTenant: true,
		status: http.StatusOK, reply: apitypes.Doctor{}, handler: (*call).doctor},
	{method: "GET", path: "/v1/errors", name: "errors", summary: "The last errors, newest first", role: Viewer,
		status: http.StatusOK, reply: apitypes.ErrorList{}, handler: (*call).errors},
	{method: "GET", path: "/v1/events", name: "events", summary: "What happens, as server-sent events", role: Viewer,
		query:  []param{{"last_event_id", "integer", "Go on behind this event; as the header Last-Event-ID.", false, nil}},
		status: http.StatusOK, reply: apitypes.Event{}, replyType: sse, handler: (*call).events},
	{method: "GET", path: "/v1/profiles", name: "profiles", summary: "The profiles", role: Viewer,
		status: http.StatusOK, reply: apitypes.ProfileList{}, handler: (*call).profiles},
	{method: "GET", path: "/v1/execs", name: "history", summary: "Commands and managed processes of the tenant that have ended, newest first", role: Viewer, query: historyParams,
		status: http.StatusOK, reply: apitypes.History{}, handler: (*call).tenantHistory},
	{method: "GET", path: "/v1/usage", name: "tenant-usage", summary: "What everything that has ended has used", role: Viewer,
		query: []param{{"from", "string", "First day, such as 2006-01-02 in UTC.", false, nil}, {"to", "string", "Last day.", false, nil},
			{"by", "array", "What to tell apart: profile, user, session or day; may be repeated. Tenants are always told apart.", false, nil}},
		status: http.StatusOK, reply: apitypes.UsageList{}, handler: (*call).tenantUsage},

	{method: "GET", path: sessionsPath, name: "list-sessions", summary: "The sessions of the tenant", role: Viewer, query: []param{labelParam},
		status: http.StatusOK, reply: apitypes.SessionList{}, handler: (*call).listSessions},
	{method: "POST", path: sessionsPath, name: "ensure-session", summary: "Get a session, and make it if it is not there", role: Operator,
		body: apitypes.SessionRequest{}, status: http.StatusOK, reply: apitypes.Session{}, fails: makeRefusals, handler: (*call).ensureSession},
	{method: "GET", path: sessionPath, name: "get-session", summary: "A session; looking is not use", role: Viewer,
		status: http.StatusOK, reply: apitypes.Session{}, handler: onSession((*call).getSession)},
	{method: "PATCH", path: sessionPath, name: "update-session", summary: "Change mounts, network, TTL and limits of a live session", role: Operator,
		body: apitypes.SessionUpdate{}, status: http.StatusOK, reply: apitypes.Session{}, fails: slices.Concat(useRefusals, []string{apitypes.CodeVolumeInUse, apitypes.CodeVolumeLost, apitypes.CodeNotAttached, apitypes.CodeNoMountPoint}), handler: onSession((*call).updateSession)},
	{method: "DELETE", path: sessionPath, name: "remove-session", summary: "End a session with all that runs in it", role: Operator,
		status: http.StatusNoContent, fails: []string{apitypes.CodeState}, handler: onSession((*call).removeSession)},
	{method: "POST", path: sessionPath + "/pause", name: "pause-session", summary: "Stop everything that runs in a session until it is resumed; a paused one stays paused", role: Operator,
		body: apitypes.PauseRequest{}, bodyOptional: true, status: http.StatusOK, reply: apitypes.Session{}, fails: []string{apitypes.CodeState, apitypes.CodeBoxLost}, handler: onSession((*call).pauseSession)},
	{method: "POST", path: sessionPath + "/resume", name: "resume-session", summary: "Let a paused session go on; one that is not paused stays as it is", role: Operator,
		status: http.StatusOK, reply: apitypes.Session{}, fails: []string{apitypes.CodeState, apitypes.CodeBoxLost}, handler: onSession((*call).resumeSession)},
	{method: "GET", path: sessionPath + "/usage", name: "usage", summary: "What the session's box uses now", role: Viewer,
		status: http.StatusOK, reply: apitypes.Usage{}, fails: []string{apitypes.CodeBoxLost}, handler: onSession((*call).usage)},
	{method: "GET", path: sessionPath + "/network", name: "network", summary: "Connections of the session's box, and what was refused", role: Viewer,
		status: http.StatusOK, reply: apitypes.Network{}, handler: onSession((*call).network)},
	{method: "GET", path: sessionPath + "/ports", name: "ports", summary: "What listens in the session's box", role: Viewer,
		status: http.StatusOK, reply: apitypes.PortList{}, fails: []string{apitypes.CodeBoxLost}, handler: onSession((*call).ports)},
	{method: "GET", path: portPath, name: "port", summary: "What a server in the session's box serves on a TCP port: requests of every method to this path and below it", role: Operator, anything: true,
		status: http.StatusOK, replyType: "*/*", fails: []string{apitypes.CodeDenied}, handler: onSession((*call).port)},
	{method: "GET", path: tunnelPath, name: "tunnel", summary: "A TCP connection to a port of the session's box, by WebSocket; boxd forward uses it", role: Operator,
		status: http.StatusSwitchingProtocols, fails: []string{apitypes.CodeDenied}, handler: onSession((*call).tunnel)},

	{method: "POST", path: linksPath, name: "make-link", summary: "Make a link that shows a port of the session's box to its holder, without a login", role: Operator,
		body: apitypes.LinkRequest{}, status: http.StatusCreated, reply: apitypes.Link{}, fails: []string{apitypes.CodePreviewsDisabled, apitypes.CodeDenied, apitypes.CodeState}, handler: onSession((*call).makeLink)},
	{method: "DELETE", path: linksPath, name: "revoke-links", summary: "Revoke all links to the session's box, and end what they have opened", role: Operator,
		status: http.StatusNoContent, fails: []string{apitypes.CodeState}, handler: onSession((*call).revokeLinks)},
	{method: "POST", path: runPath, name: "run", summary: "Run a command in a box of its own, of which nothing stays; with Accept: application/x-ndjson its output is streamed", role: Operator,
		body: apitypes.RunRequest{}, status: http.StatusOK, reply: apitypes.ExecResult{}, replyType: ndjson, fails: runRefusals, handler: (*call).runOnce},
	{method: "POST", path: sessionPath + "/exec", name: "exec", summary: "Run a command and wait for it; with Accept: application/x-ndjson its output is streamed", role: Operator,
		body: apitypes.ExecRequest{}, status: http.StatusOK, reply: apitypes.ExecResult{}, replyType: ndjson, fails: runRefusals, handler: onSession((*call).exec)},
	{method: "POST", path: sessionPath + "/code", name: "code", summary: "Run source code in a language of the session's profile; the answer is exec's, streamed likewise", role: Operator,
		body: apitypes.CodeRequest{}, status: http.StatusOK, reply: apitypes.ExecResult{}, replyType: ndjson, fails: slices.Concat(runRefusals, fileRefusals), handler: onSession((*call).code)},

	{method: "GET", path: sessionPath + "/execs", name: "session-history", summary: "Commands and managed processes of a session that have ended, newest first", role: Viewer, query: historyParams,
		status: http.StatusOK, reply: apitypes.History{}, handler: onSession((*call).sessionHistory)},

	{method: "GET", path: processesPath, name: "list-processes", summary: "The managed processes of a session", role: Viewer, query: []param{labelParam},
		status: http.StatusOK, reply: apitypes.ProcessList{}, handler: onSession((*call).listProcesses)},
	{method: "POST", path: processesPath, name: "start-process", summary: "Start a managed process", role: Operator,
		body: apitypes.ProcessRequest{}, status: http.StatusCreated, reply: apitypes.Process{}, fails: append(slices.Clone(runRefusals), apitypes.CodeExists, apitypes.CodeNotReady), handler: onSession((*call).startProcess)},
	{method: "GET", path: processPath, name: "get-process", summary: "A managed process", role: Viewer,
		status: http.StatusOK, reply: apitypes.Process{}, handler: onProcess((*call).getProcess)},
	{method: "DELETE", path: processPath, name: "remove-process", summary: "End a managed process and forget its output", role: Operator,
		status: http.StatusNoContent, fails: []string{apitypes.CodeState}, handler: onProcess((*call).removeProcess)},
	{method: "POST", path: processPath + "/stop", name: "stop-process", summary: "End a managed process and keep its output", role: Operator,
		body: apitypes.StopRequest{}, bodyOptional: true, status: http.StatusOK, reply: apitypes.Process{}, fails: []string{apitypes.CodeState, apitypes.CodeBoxLost}, handler: onProcess((*call).stopProcess)},
	{method: "POST", path: processPath + "/signal", name: "signal-process", summary: "Send a signal to a managed process", role: Operator,
		body: apitypes.SignalRequest{}, status: http.StatusNoContent, fails: []string{apitypes.CodeProcessEnded, apitypes.CodeBoxLost}, handler: onProcess((*call).signalProcess)},
	{method: "GET", path: processPath + "/relay", name: "relay", summary: "Attach to a managed process by WebSocket; docs/relay.md has the protocol. A viewer only watches", role: Viewer,
		query: []param{{"mode", "string", "observe (the default) or write.", false, []string{"observe", "write"}}, {"since", "string", "Where stdout begins: an offset, oldest or end; after a comma the same for stderr.", false, nil},
			{"since_stderr", "string", "Where stderr begins.", false, nil}, {"takeover", "integer", "1: become the writer in place of another.", false, nil},
			{"ack", "integer", "1: with flow control.", false, nil}, {"client", "string", "Id of the client across its connections.", false, nil}},
		status: http.StatusSwitchingProtocols, fails: []string{apitypes.CodeRelayRequest, apitypes.CodeWriterTaken, apitypes.CodeOutputGone, apitypes.CodeNoOffset}, handler: onProcess((*call).relay)},
	{method: "GET", path: processPath + "/logs", name: "logs", summary: "Output of a managed process as plain bytes", role: Viewer,
		query: []param{{"stream", "string", "stdout (the default) or stderr.", false, []string{"stdout", "stderr"}}, {"offset", "integer", "Offset of the first byte; a negative one counts from the end.", false, nil},
			{"tail", "integer", "Only that many of the last lines.", false, nil}, {"since", "string", "Only what came since: a duration before now, or a time of RFC 3339.", false, nil},
			{"timestamps", "boolean", "Put the time at which it came in front of each line.", false, nil}, {"follow", "boolean", "Go on until the process has ended.", false, nil}, limitParam},
		status: http.StatusOK, replyType: octets, fails: []string{apitypes.CodeOutputGone, apitypes.CodeNoOffset, apitypes.CodeNoStream}, handler: onProcess((*call).logs)},

	{method: "GET", path: filesPath, name: "list-files", summary: "The entries of a directory in the box", role: Viewer,
		query: []param{pathParam, {"limit", "integer", "Entries at most; 0: 1000.", false, nil}}, status: http.StatusOK, reply: apitypes.FileList{}, fails: fileRefusals, handler: (*call).listFiles},
	{method: "GET", path: filesPath + "/stat", name: "stat-file", summary: "What is at a path in the box", role: Viewer,
		query: []param{pathParam}, status: http.StatusOK, reply: apitypes.FileInfo{}, fails: fileRefusals, handler: (*call).statFile},
	{method: "GET", path: filesPath + "/content", name: "read-file", summary: "The content of a file in the box", role: Viewer,
		query: []param{pathParam, offsetParam, limitParam}, status: http.StatusOK, replyType: octets, fails: fileRefusals, handler: (*call).readFile},
	{method: "PUT", path: filesPath + "/content", name: "write-file", summary: "Replace a file in the box, or add to it", role: Operator,
		query: []param{pathParam, {"mode", "string", "Permission bits in octal.", false, nil}, {"append", "boolean", "Add to the file.", false, nil},
			{"parents", "boolean", "Make missing directories.", false, nil}},
		rawBody: octets, status: http.StatusOK, reply: apitypes.FileInfo{}, fails: fileRefusals, handler: (*call).writeFile},
	{method: "DELETE", path: filesPath + "/content", name: "remove-file", summary: "Remove a file or directory in the box", role: Operator,
		query: []param{pathParam, {"recursive", "boolean", "A directory with all that is in it.", false, nil}}, status: http.StatusNoContent, fails: fileRefusals, handler: (*call).removeFile},
	{method: "POST", path: filesPath + "/mkdir", name: "mkdir", summary: "Make a directory in the box", role: Operator,
		body: apitypes.MkdirRequest{}, status: http.StatusNoContent, fails: fileRefusals, handler: (*call).mkdir},
	{method: "PUT", path: filesPath + "/symlink", name: "make-symlink", summary: "Make a symlink in the box, in place of a file or symlink that is there", role: Operator,
		query: []param{pathParam, {"target", "string", "What the symlink points to.", true, nil}}, status: http.StatusNoContent, fails: fileRefusals, handler: (*call).symlink},
	{method: "GET", path: filesPath + "/watch", name: "watch-files", summary: "Changes in a directory in the box, as server-sent events", role: Viewer,
		query:  []param{pathParam, {"recursive", "boolean", "Watch the directories below too.", false, nil}, globParam},
		status: http.StatusOK, reply: apitypes.FileChange{}, replyType: sse, fails: fileRefusals, handler: (*call).watchFiles},
	{method: "POST", path: filesPath + "/rename", name: "rename-file", summary: "Rename a file or directory in the box", role: Operator,
		body: apitypes.RenameRequest{}, status: http.StatusNoContent, fails: fileRefusals, handler: (*call).renameFile},
	{method: "POST", path: filesPath + "/copy", name: "copy-files", summary: "Copy a file or the content of a directory from a session of the tenant", role: Operator,
		body: apitypes.CopyRequest{}, status: http.StatusOK, reply: apitypes.FileTree{}, fails: fileRefusals, handler: (*call).copyFiles},
	{method: "GET", path: filesPath + "/tar", name: "pack-files", summary: "The content of a directory in the box, as a tar archive; with Accept-Encoding: gzip it is compressed", role: Viewer,
		query: []param{pathParam, globParam}, status: http.StatusOK, replyType: tarball, fails: fileRefusals, handler: (*call).packFiles},
	{method: "PUT", path: filesPath + "/tar", name: "unpack-files", summary: "Unpack a tar archive into a directory in the box; Content-Encoding may be gzip", role: Operator,
		query:   []param{pathParam, globParam, {"parents", "boolean", "Make the directory if it is missing.", false, nil}},
		rawBody: tarball, status: http.StatusOK, reply: apitypes.FileTree{}, fails: append(slices.Clone(fileRefusals), apitypes.CodeMediaType), handler: (*call).unpackFiles},

	{method: "GET", path: volumesPath, name: "list-volumes", summary: "The volumes of the tenant", role: Viewer,
		status: http.StatusOK, reply: apitypes.VolumeList{}, handler: (*call).listVolumes},
	{method: "POST", path: volumesPath, name: "create-volume", summary: "Get a volume, and make it, empty or as a copy of another, if it is not there", role: Operator,
		body: apitypes.VolumeRequest{}, status: http.StatusOK, reply: apitypes.Volume{}, fails: []string{apitypes.CodeVolumeExists, apitypes.CodeVolumeInUse, apitypes.CodeVolumeLost, apitypes.CodeVolumeNotFound, apitypes.CodeQuota, apitypes.CodeState}, handler: onVolume((*call).createVolume)},
	{method: "GET", path: volumePath, name: "get-volume", summary: "A volume", role: Viewer,
		status: http.StatusOK, reply: apitypes.Volume{}, handler: onVolume((*call).getVolume)},
	{method: "PATCH", path: volumePath, name: "resize-volume", summary: "Change the size of a volume, or mark it as sensitive, also while sessions have it", role: Operator,
		body: apitypes.VolumeUpdate{}, status: http.StatusOK, reply: apitypes.Volume{}, fails: []string{apitypes.CodeVolumeInUse, apitypes.CodeVolumeLost, apitypes.CodeQuota, apitypes.CodeDenied, apitypes.CodeState}, handler: onVolume((*call).resizeVolume)},
	{method: "DELETE", path: volumePath, name: "remove-volume", summary: "Remove a volume that no session has, with all that is in it", role: Operator,
		status: http.StatusNoContent, fails: []string{apitypes.CodeVolumeInUse, apitypes.CodeState}, handler: onVolume((*call).removeVolume)},

	{method: "GET", path: imagesPath, name: "list-images", summary: "The images that the tenant can use: its own and the shared ones", role: Viewer,
		status: http.StatusOK, reply: apitypes.ImageList{}, fails: []string{apitypes.CodeImagesDisabled}, handler: onImages((*call).listImages)},
	{method: "POST", path: imagesPath, name: "pull-image", summary: "Pull an image from its registry, unless it is there; with Accept: application/x-ndjson the progress is streamed", role: Operator,
		body: apitypes.ImagePull{}, status: http.StatusOK, reply: apitypes.Image{}, replyType: ndjson, line: apitypes.ImageEvent{}, fails: addImageRefusals, handler: onImages((*call).pullImage)},
	{method: "DELETE", path: imagesPath, name: "remove-image", summary: "Remove a reference; the layers go with the next collection", role: Operator,
		query: imageParams, status: http.StatusNoContent, fails: imageRefusals, handler: onImages((*call).removeImage)},
	{method: "GET", path: imagesPath + "/inspect", name: "get-image", summary: "An image, with what it says of the commands that run in it", role: Viewer,
		query: imageParams, status: http.StatusOK, reply: apitypes.Image{}, fails: imageRefusals, handler: onImages((*call).getImage)},
	{method: "POST", path: imagesPath + "/import", name: "import-image", summary: "Import an image from a tar archive: an OCI layout, an archive of docker save, or a root file system; with Accept: application/x-ndjson the progress is streamed", role: Operator,
		query:   []param{{"name", "string", "Reference that the image gets; absent: that in the archive.", false, nil}, {"platform", "string", "OS/architecture[/variant], if the archive has several.", false, nil}, sharedParam},
		rawBody: tarball, status: http.StatusOK, reply: apitypes.Image{}, replyType: ndjson, line: apitypes.ImageEvent{}, fails: append(slices.Clone(addImageRefusals), apitypes.CodeMediaType), handler: onImages((*call).importImage)},
	{method: "POST", path: imagesPath + "/verify", name: "verify-image", summary: "Compare an image on disk with what was pulled", role: Operator,
		body: apitypes.ImageName{}, status: http.StatusNoContent, fails: append(slices.Clone(imageRefusals), apitypes.CodeImageDamaged), handler: onImages((*call).verifyImage)},
	{method: "POST", path: imagesPath + "/gc", name: "collect-images", summary: "Delete layers and images that nothing needs", role: Admin,
		status: http.StatusOK, reply: apitypes.ImagesCollected{}, fails: []string{apitypes.CodeImagesDisabled}, handler: onImages((*call).collectImages)},

	{method: "GET", path: sensitivePath, name: "list-sensitive-paths", summary: "Paths of the host and of skills that sensitive sessions could write to", role: Viewer, everyTenant: true,
		status: http.StatusOK, reply: apitypes.SensitivePathList{}, handler: (*call).listSensitivePaths},
	{method: "DELETE", path: sensitivePath, name: "forget-sensitive-path", summary: "Forget that a path is sensitive, once it is removed or emptied", role: Admin,
		query: []param{{"path", "string", "Path, as the list has it.", true, nil}}, status: http.StatusNoContent,
		fails: []string{apitypes.CodeNotFound, apitypes.CodeState}, handler: (*call).forgetSensitivePath},
}

// The codes with which operations on a box can be refused, in addition to those that follow
// from the shape of the route; see [route.refusals].
var (
	// useRefusals are those of every operation that needs the session's box.
	useRefusals = []string{apitypes.CodeDenied, apitypes.CodeQuota, apitypes.CodeState, apitypes.CodePaused, apitypes.CodeBoxLost, apitypes.CodeBoxAtLimit}
	// makeRefusals are those of every operation that may create a session.
	makeRefusals = []string{apitypes.CodeImageNotPresent, apitypes.CodeImageNotFound, apitypes.CodeImageLogin, apitypes.CodeImageDamaged, apitypes.CodeImagePlatform, apitypes.CodeImageRefused, apitypes.CodeSessionConflict, apitypes.CodeVolumeInUse, apitypes.CodeVolumeLost, apitypes.CodeNoMountPoint, apitypes.CodeDenied, apitypes.CodeQuota, apitypes.CodeState, apitypes.CodeBoxLost}
	// runRefusals are those of every operation that runs a program.
	runRefusals = slices.Concat(useRefusals, makeRefusals, []string{
		apitypes.CodeProgramNotFound, apitypes.CodeProgramNotExecutable, apitypes.CodeNoDirectory})
	fileRefusals = slices.Concat(useRefusals, []string{apitypes.CodeFilePermission, apitypes.CodeNoFile, apitypes.CodeFileExists, apitypes.CodeFileType,
		apitypes.CodeNotEmpty, apitypes.CodeFileTooLarge, apitypes.CodeFileOperation})
)

// imageRefusals are those of every operation on an image that is there, addImageRefusals of those that make one.
var (
	imageRefusals    = []string{apitypes.CodeImagesDisabled, apitypes.CodeImageNotFound}
	addImageRefusals = slices.Concat(imageRefusals, []string{apitypes.CodeDenied, apitypes.CodeImageLogin, apitypes.CodeImageDamaged, apitypes.CodeImagePlatform, apitypes.CodeImageRefused, apitypes.CodeQuota})
)

// refusals returns the codes below 500 with which rt can answer, sorted. The tests of this
// package compare every answer with them.
func (rt *route) refusals() []string {
	codes := append([]string{apitypes.CodeBadPath, apitypes.CodeUnknownField, apitypes.CodeBodyTooLarge}, rt.fails...)
	if !rt.open {
		codes = append(codes, apitypes.CodeUnauthenticated, apitypes.CodeForbidden, apitypes.CodeInvalid, apitypes.CodeTooManyConnections, apitypes.CodeRate)
	}
	if rt.body != nil {
		codes = append(codes, apitypes.CodeMalformed, apitypes.CodeWrongType, apitypes.CodeBodyTimeout, apitypes.CodeMediaType)
	}
	if rt.rawBody != "" {
		codes = append(codes, apitypes.CodeBodyTimeout)
	}
	if strings.Contains(rt.path, "{id}") {
		codes = append(codes, apitypes.CodeSessionNotFound)
	}
	if strings.Contains(rt.path, "{name}") {
		codes = append(codes, apitypes.CodeVolumeNotFound)
	}
	if strings.Contains(rt.path, "{pid}") {
		codes = append(codes, apitypes.CodeProcessNotFound)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
