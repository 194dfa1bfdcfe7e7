package apitypes

import "github.com/boxd/boxd/engine/spec"

// CodeRequest runs source code. The answer is an [ExecResult].
type CodeRequest struct {
	Language    string            `json:"language,omitempty" doc:"A language of the session's profile; empty: the one whose files end as file does."`
	Code        string            `json:"code" doc:"The source code."`
	File        string            `json:"file,omitempty" doc:"Name of the file for the code; empty: the language's."`
	Files       []CodeFile        `json:"files,omitempty" doc:"More files, up to 64."`
	Args        []string          `json:"args,omitempty" doc:"Arguments of the program."`
	Env         map[string]string `json:"env,omitempty" doc:"Added to the environment of the session and of the language."`
	Cwd         string            `json:"cwd,omitempty" doc:"Working directory; empty: the workspace."`
	Mkdir       bool              `json:"mkdir,omitempty" doc:"Make a missing working directory."`
	Stdin       string            `json:"stdin,omitempty" doc:"Standard input as UTF-8 text; empty: /dev/null."`
	StdinBase64 []byte            `json:"stdin_base64,omitempty" doc:"Standard input in base64, instead of stdin."`
	Timeout     Duration          `json:"timeout,omitempty" doc:"Seconds, or a string such as \"1m\"; 0: the session's. Clamped to the profile's cap."`
	Grace       Duration          `json:"grace,omitempty" doc:"Seconds between SIGTERM and SIGKILL; 0: 2."`
	OutputLimit Size              `json:"output_limit,omitempty" doc:"Bytes that the program may write to stdout and to stderr, each; more ends it. 0: the server's."`
	Outputs     []string          `json:"outputs,omitempty" doc:"Return the files that the command has made or changed and that match: *.png, out or **/*.csv, relative to the working directory; a directory stands for everything in it."`
	User        *spec.User        `json:"user,omitempty" doc:"User in the box; absent: the session's."`
	Session     *SessionSpec      `json:"session,omitempty" doc:"Make the session with this if it is not there; conflicts if it is there and differs."`
}

// CodeFile is a file for code to use.
type CodeFile struct {
	Path          string `json:"path" doc:"A relative one lies beside the code and is removed with it. An absolute one is a path in the box: the file is replaced, and stays."`
	Content       string `json:"content,omitempty" doc:"Content as UTF-8 text."`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"Content in base64, instead of content."`
}
