// Package plan is what "boxd bench" asks boxd-bench to do. The program is one of its own, because
// what measures and draws must not slow the start of boxd.
package plan

// Plan is the argument of boxd-bench, as JSON.
type Plan struct {
	Boxd string `json:"boxd"` // path of boxd
	Init string `json:"init"` // path of boxd-init

	List bool `json:"list,omitempty"` // print the names of sections, nothing else

	Samples       int      `json:"samples,omitempty"` // of a short row; longer ones take a fraction. At least 10
	Only          []string `json:"only,omitempty"`    // sections
	Full          bool     `json:"full,omitempty"`    // also the sections that need hundreds of boxes
	AllowDegraded bool     `json:"allow_degraded,omitempty"`

	// What the engines to measure run; empty: the host's.
	Runc       string `json:"runc,omitempty"`       // path
	Runsc      string `json:"runsc,omitempty"`      // path
	Containerd string `json:"containerd,omitempty"` // path of its socket

	JSON     bool   `json:"json,omitempty"`     // print JSON instead of a table
	HTML     string `json:"html,omitempty"`     // also write a page to this file
	Pictures string `json:"pictures,omitempty"` // also write the pictures to this directory

	// Compare are the files of two reports. If set, they are compared and nothing is measured.
	Compare   []string `json:"compare,omitempty"`
	Threshold float64  `json:"threshold,omitempty"` // a smaller change is no regression; 0.05 is 5 %

	Command []string `json:"command,omitempty"` // what the user typed, for the report
}

// StatusRegression is the exit status of boxd-bench if a comparison finds a regression.
const StatusRegression = 1

// StatusFailed is the exit status of boxd-bench if it could not do its work: that of boxd.
const StatusFailed = 125
