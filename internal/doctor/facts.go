package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/sealed"
	"github.com/boxd/boxd/netns"
)

// Facts are what [Gather] found on a host.
type Facts struct {
	Version          string // of boxd
	Release, Machine string // of the kernel, as uname(2) has them
	// Upstream is the version of kernel.org that a distribution's kernel is based on, if the
	// distribution tells. A Release such as "6.1.0-31-amd64" does not.
	Upstream string
	UID      int

	// Features maps the name of a kernel feature to the result of trying it: nil if it works,
	// errors.ErrUnsupported if it certainly does not exist, otherwise an error that leaves it open.
	Features map[string]error
	// Sysctls that the report looks at, by path below /proc/sys. Absent ones are omitted.
	Sysctls map[string]string

	// Around serves to explain the other facts.
	Around Surroundings

	// Memory is the size of main memory and PageSize that of a page, in bytes; 0 if unknown.
	Memory, PageSize int64
	// HostWide are settings that each box should have for itself, but that this kernel has once
	// for the host. It is empty unless UID is 0.
	HostWide      []netns.HostWide
	HostWideError error

	CgroupMode  string // of package cgroups; empty if CgroupError is set
	CgroupError error
	Enforcement []cgroups.Enforcement // only if UID is 0

	// StateDir is the directory in which the daemon keeps workspaces, or the nearest parent that
	// exists. WorkspaceError is nil if it can be id-mapped, otherwise as in Features.
	StateDir       string
	WorkspaceError error
	Images         ImageFacts

	InitPath string
	// InitError says why boxd-init was not found or does not fit. It is nil if a launcher
	// answered.
	InitError error
	Box       Trial
	// Engines are those that boxes can be built with, and Wanted those of the daemon's configuration.
	Engines []EngineFacts
	Wanted  []string

	// Leftovers are things in RunDir that launchers could not remove.
	RunDir    string
	Leftovers []*leftover.Record
}

// Trial is an attempt to build a box with the default limits and to run a command in it.
type Trial struct {
	Error error
	// Degraded means that the attempt succeeded only without the limits.
	Degraded bool
	// Create and Run are the times that it took to build the box and to run the command.
	Create, Run time.Duration
}

// EngineFacts are about one engine with one isolation.
type EngineFacts struct {
	engine.EngineState
	// Box is tried if the engine is available and not the native one, which Facts.Box has tried. The daemon tries none.
	Box Trial
}

// Host is what the caller tells Gather.
type Host struct {
	Version   string
	InitPath  string
	InitError error    // says why there is no InitPath
	StateDir  string   // of the daemon
	Engines   []string // of the daemon's configuration
	NewEngine func(ctx context.Context) (engine.Engine, error)
	RunDir    string // of launchers
}

// sysctls that can forbid what boxes need, and those that bound pools of the host.
var sysctls = []string{
	"user/max_user_namespaces",
	"kernel/unprivileged_userns_clone",             // Debian
	"kernel/apparmor_restrict_unprivileged_userns", // Ubuntu 23.10
	"vm/memfd_noexec",                              // Linux 6.3
	poolPIDs, poolFiles, poolAIO, poolPTY, reservePTY, poolTCP, poolUDP,
}

// probes try one feature each. The keys are the names in the report.
var probes = map[string]func() error{
	featureUserNS:  linux.ProbeUserNS,
	featureMounts:  linux.ProbeMountAPI,
	featureIDMap:   func() error { return linux.ProbeIDMap("/") },
	featureOverlay: func() error { return linux.ProbeFilesystem("overlay") },
	featureSeccomp: linux.ProbeSeccomp,
	featureClone:   linux.ProbeCloneIntoCgroup,
	featurePidfd:   linux.ProbePidfd,
	featureOpenat2: linux.ProbeOpenat2,
	featureMemfd:   sealed.Probe,

	featureLandlock: linux.ProbeLandlock,
}

// Gather examines this host. It builds a box, runs a command in it and removes it; nothing is left
// behind.
func Gather(ctx context.Context, h Host) Facts {
	f := Facts{
		Version:   h.Version,
		UID:       os.Geteuid(),
		Features:  map[string]error{},
		InitPath:  h.InitPath,
		InitError: h.InitError,
	}
	f.readKernel()
	f.Around = lookAround(f.Release)
	for name, probe := range probes {
		f.Features[name] = probe()
	}
	if f.UID == 0 {
		f.HostWide, f.HostWideError = netns.FindHostWide()
	}
	f.Wanted = h.Engines
	f.StateDir = existing(h.StateDir)
	f.WorkspaceError = linux.ProbeIDMap(f.StateDir)
	f.Images = gatherImages(f.StateDir)
	f.examineCgroups()
	switch {
	case f.InitError != nil:
		f.Box.Error = f.InitError
	case f.UID != 0:
		f.Box.Error = errNotRoot
	default:
		f.tryBox(ctx, h)
	}
	f.RunDir = h.RunDir
	f.Leftovers, _ = leftover.List(h.RunDir) // the only error is a bad pattern
	return f
}

// readKernel finds what the kernel tells every process.
func (f *Facts) readKernel() {
	f.Release, f.Machine, _ = linux.KernelRelease() // uname cannot fail with a valid buffer
	f.Upstream = upstream(readLine("/proc/version"), readLine("/proc/version_signature"))
	f.Sysctls = map[string]string{}
	for _, name := range sysctls {
		if value := readLine("/proc/sys/" + name); value != "" {
			f.Sysctls[name] = value
		}
	}
	f.PageSize = int64(os.Getpagesize())
	// "MemTotal:       24671232 kB" comes first (proc_meminfo(5)).
	if fields := strings.Fields(readLine("/proc/meminfo")); len(fields) > 1 && fields[0] == "MemTotal:" {
		kib, _ := strconv.ParseInt(fields[1], 10, 64)
		f.Memory = kib << 10
	}
}

// existing returns path, or its nearest parent that exists.
func existing(path string) string {
	path = filepath.Clean("/" + path)
	for path != "/" {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// readLine returns the content of a small file of procfs without surrounding space, or "".
func readLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// errNotRoot says that nothing was tried that takes root.
var errNotRoot = errors.New("not tried: only root builds boxes")

func (f *Facts) examineCgroups() {
	host, err := cgroups.Detect()
	if err != nil {
		f.CgroupError = err
		return
	}
	defer host.Close()
	f.CgroupMode = string(host.Mode())
	if f.UID == 0 {
		f.Enforcement = host.Enforcement()
	}
}

// trialCommand runs in every box, as scripts need the shell.
var trialCommand = engine.Command{Args: []string{"sh", "-c", "exit 0"}, Timeout: 30 * time.Second}

func (f *Facts) tryBox(ctx context.Context, h Host) {
	eng, err := h.NewEngine(ctx)
	if err != nil {
		f.InitError, f.Box.Error = err, err
		return
	}
	f.Box = try(ctx, eng, engine.Spec{})
	if f.Box.Error != nil {
		if again := try(ctx, eng, engine.Spec{AllowDegraded: true}); again.Error == nil {
			f.Box.Degraded = true
		}
	}
	f.tryEngines(ctx, eng)
	if err := eng.Close(); err != nil && f.Box.Error == nil {
		f.Box.Error = err
	}
}

// engineTime bounds the trial of one engine. gVisor takes about a second for a box.
const engineTime = 10 * time.Second

// tryEngines tries the engines that eng has besides its own.
func (f *Facts) tryEngines(ctx context.Context, eng engine.Engine) {
	choosing, ok := eng.(engine.Choosing)
	if !ok {
		return
	}
	states, err := choosing.Engines(ctx, "", "")
	if err != nil {
		return // the launcher does not answer, which the box says
	}
	for _, s := range states {
		e := EngineFacts{EngineState: s}
		if s.Available() && s.Engine != spec.EngineNative {
			limited, cancel := context.WithTimeout(ctx, engineTime)
			e.Box = try(limited, eng, engine.Spec{Engine: s.Engine, Isolation: s.Isolation, AllowDegraded: true})
			cancel()
		}
		f.Engines = append(f.Engines, e)
	}
}

// try builds a box, runs a command in it and removes the box.
func try(ctx context.Context, eng engine.Engine, b engine.Spec) (t Trial) {
	began := time.Now()
	box, err := eng.Create(ctx, b)
	if err != nil {
		t.Error = err
		return t
	}
	defer func() { t.Error = errors.Join(t.Error, box.Remove(context.WithoutCancel(ctx))) }()
	t.Create = time.Since(began)
	began = time.Now()
	result, err := engine.Run(ctx, box, trialCommand)
	t.Run = time.Since(began)
	switch {
	case err != nil:
		t.Error = err
	case result.Status() != 0:
		t.Error = fmt.Errorf("command in the box: exit status %d, verdict %s", result.Status(), result.Verdict)
	}
	return t
}
