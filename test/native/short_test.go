package native

import (
	"strconv"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/test/services"
)

// Short names of the helpers that most tests of this package use.
var (
	run, tryRun          = boxtest.Run, boxtest.TryRun
	shell, python        = boxtest.Shell, boxtest.Python
	want, wantOutput     = boxtest.Want, boxtest.WantOutput
	begin, wait, remove  = boxtest.Begin, boxtest.Wait, boxtest.Remove
	tail                 = boxtest.Tail
	change, update       = boxtest.Change, boxtest.Update
	workspace, hostDir   = boxtest.Workspace, boxtest.HostDir
	waitUntil            = boxtest.WaitUntil
	newScreen            = boxtest.NewScreen
	launch, managedShell = boxtest.Launch, boxtest.ManagedShell
	await, patient       = boxtest.Await, boxtest.Patient
	wantManaged, goOn    = boxtest.WantManaged, boxtest.GoOn
	skill, wantBadMount  = boxtest.Skill, boxtest.WantBadMount
	wantVolumeFull       = boxtest.WantVolumeFull
	newGate              = boxtest.NewGate
	answering, exchange  = boxtest.Answering, boxtest.Exchange
	proxyAddress         = boxtest.ProxyAddress
	patience             = boxtest.Patience

	stateDir, dataParent, loops = services.StateDir, services.DataParent, services.Loops
	leftIn                      = services.LeftIn
	serviceProcesses            = services.Processes
	killLauncher, killAll       = services.KillLauncher, services.KillAll
)

type (
	outcome = boxtest.Outcome
	screen  = boxtest.Screen
)

const (
	mib       = boxtest.MiB
	hog       = boxtest.Hog
	fillBytes = boxtest.FillBytes
	fillFiles = boxtest.FillFiles
)

func commands(t testing.TB, b engine.Box) []string { return decimal(services.Commands(t, b.ID())) }

func initPIDs(t testing.TB, b engine.Box) []string { return decimal(services.Init(t, b.ID())) }

func decimal(pids []int) (words []string) {
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	return words
}

func workDirs(t testing.TB, b engine.Box) []string { return services.WorkDirs(t, b.ID()) }

// wantCleanState checks that an engine left only what the next one uses again.
func wantCleanState(t testing.TB, dir string) {
	t.Helper()
	if err := leftIn(dir); err != nil {
		t.Error(err)
	}
}
