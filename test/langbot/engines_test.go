package langbot

import (
	"maps"
	"slices"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// engineEnv are the variables with which daemons of the tests choose what builds their boxes; none: the
// native engine.
var engineEnv []string

// isolation is that of the boxes. A test that writes profiles of its own has to name it there.
var isolation = "namespaces"

// shortForm are the tests of LangBot's door that every engine has to pass: commands, processes and their
// relays, the network, and what a restart leaves. longForm are more of them.
var shortForm = map[string]func(*testing.T){
	"engine": func(t *testing.T) {
		b := begin(t).bot("i", "w")
		b.call("box_create_session", spec("s", nil))
		list, err := b.w.every.Sessions(t.Context())
		if err != nil || len(list) != 1 || "BOXD_ENGINES="+list[0].Engine != engineEnv[0] || list[0].Isolation != isolation {
			t.Errorf("%+v, %v; want a box of %s with %s", list, err, engineEnv[0], isolation)
		}
	},
	"streams": TestExecStreams, "ends": TestExecEnds, "mcp": TestMCPSession, "network": TestMCPNetwork, "lines": TestRelayLines, "restart": TestRestart,
}

var longForm = map[string]func(*testing.T){
	"timeout": TestTimeoutEndsTheSession, "expiry": TestExpiry, "skill": TestSkillInABox, "memory": TestProcessMemory,
	"mounts": TestExtraMounts, "bulk": TestRelayBulk, "images": TestImages,
}

// onEngine runs the short form with daemons whose boxes another engine builds, in full the long form as well. It
// leaves out what the engine does not do (engine.Differences).
func onEngine(t *testing.T, env []string, without ...string) {
	t.Helper()
	tests := maps.Clone(shortForm)
	if testutil.Full() {
		maps.Copy(tests, longForm)
	}
	for _, name := range without {
		delete(tests, name)
	}
	engineEnv = env
	defer func() { engineEnv = nil }()
	t.Run("on", func(t *testing.T) { // ends when those that run in parallel have ended, too
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(name, tests[name])
		}
	})
}

func TestOnOCI(t *testing.T) {
	testutil.RequireProgram(t, "runc")
	onEngine(t, []string{"BOXD_ENGINES=oci"})
}

// TestOnGVisor has the whole short form only in full: these boxes take longer to build.
func TestOnGVisor(t *testing.T) {
	runsc := testutil.Runsc(t)
	without := []string{"memory", "mounts"}
	if !testutil.Full() {
		without = append(without, "streams", "ends", "lines")
	}
	isolation = "gvisor"
	defer func() { isolation = "namespaces" }()
	config := configFile(t, "profiles: {langbot: {isolation: gvisor}}\n")
	onEngine(t, []string{"BOXD_ENGINES=oci", "BOXD_OCI_GVISOR=" + runsc, "BOXD_CONFIG=" + config}, without...)
}
