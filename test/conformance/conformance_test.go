// Package conformance runs the suite of engine/conformance on the engines of this project.
package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/conformance"
	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/containerd"
	"github.com/boxd/boxd/test/services"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// service is a launcher service as the suite sees it.
type service struct{ *services.Service }

func (s service) Connect(ctx context.Context) (conformance.Client, error) {
	return s.Service.Connect(ctx)
}

func (s service) KillLauncher(t testing.TB) { services.KillLauncher(t, s.State) }

func (s service) Restart(t testing.TB) {
	s.Stop(false)
	s.Start()
}

func (s service) Init(t testing.TB, box string) []int { return services.Init(t, box) }

func (s service) Commands(t testing.TB, box string) []int { return services.Commands(t, box) }

// open starts a service whose launcher has these options.
func open(o native.LauncherOptions) func(testing.TB) conformance.Host {
	o.MountRoots = []string{"/"} // what is refused is refused for another reason
	return func(t testing.TB) conformance.Host { return service{services.Start(t, o)} }
}

// TestNative runs the whole suite: the other engines are compared with this one.
func TestNative(t *testing.T) {
	testutil.Long(t)
	conformance.Run(t, conformance.Options{
		Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces,
		Open: open(native.LauncherOptions{}), Thorough: true,
	})
}

// on runs the short form of the suite on another engine, in full with "make full", and the brief one
// with -short: in the virtual machine of "make test", which has time for runc only. It is
// skipped with the engine's reason where the engine cannot build boxes, unless ".ci/setup test" installs what it needs.
func on(t *testing.T, engineName, isolation string, o native.LauncherOptions) {
	t.Helper()
	start := open(o)
	if reason := unavailable(t, start(t), engineName, isolation); reason != "" {
		testutil.RequireFeature(t, "engine "+engineName+" with "+isolation, errors.New(reason))
	}
	conformance.Run(t, conformance.Options{Engine: engineName, Isolation: isolation, Open: start, Brief: testing.Short()})
}

// unavailable returns why a service cannot build boxes with an engine and an isolation. It asks for a while:
// on a machine that is emulated or busy, a runtime may not answer within the seconds that a launcher gives it.
func unavailable(t *testing.T, h conformance.Host, engineName, isolation string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Patience)
	defer cancel()
	client, err := h.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for end := time.Now().Add(boxtest.Patience / 5); ; {
		list, err := client.(engine.Choosing).Engines(ctx, "", "")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(s engine.EngineState) bool { return s.Engine == engineName && s.Isolation == isolation })
		if i < 0 {
			t.Fatalf("this launcher does not know engine %q with isolation %q", engineName, isolation)
		}
		if list[i].Available() || time.Now().After(end) {
			return list[i].Reason
		}
		time.Sleep(time.Second) // as long as a launcher repeats its answer
	}
}

func TestOCI(t *testing.T) {
	on(t, spec.EngineOCI, spec.IsolationNamespaces, native.LauncherOptions{})
}

func TestOCIGVisor(t *testing.T) {
	testutil.Long(t)
	on(t, spec.EngineOCI, spec.IsolationGVisor, native.LauncherOptions{Runtimes: native.Runtimes{GVisor: testutil.Runsc(t)}})
}

func TestContainerd(t *testing.T) {
	testutil.Long(t)
	onContainerd(t, containerd.Start(t))
}

// TestContainerdCurrent runs the suite on a current containerd instead of the distribution's.
func TestContainerdCurrent(t *testing.T) {
	onContainerd(t, containerd.Start(t, testutil.CurrentContainerd(t)))
}

func onContainerd(t *testing.T, d *containerd.Daemon) {
	t.Helper()
	on(t, spec.EngineContainerd, spec.IsolationNamespaces, native.LauncherOptions{Runtimes: native.Runtimes{
		Containerd: testutil.BuildContainerd(t), ContainerdAddress: d.Address,
	}})
}

// fake is a host of engine/enginetest, which plays boxes in memory.
type fake struct{ *enginetest.Host }

type fakeClient struct{ *enginetest.Client }

func (c fakeClient) Close() error {
	c.Cut()
	return nil
}

func (f fake) Connect(context.Context) (conformance.Client, error) {
	return fakeClient{f.Host.Connect()}, nil
}

func (fake) KillLauncher(testing.TB)           {}
func (fake) Restart(testing.TB)                {}
func (fake) Init(testing.TB, string) []int     { return nil }
func (fake) Commands(testing.TB, string) []int { return nil }

// TestFake shows that the suite depends on no engine, and that tests over engine/enginetest see the
// lifetimes that they would see with a real one.
func TestFake(t *testing.T) {
	testutil.Long(t)
	conformance.Run(t, conformance.Options{
		Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces,
		Open:       func(t testing.TB) conformance.Host { return fake{enginetest.NewHost(t.TempDir())} },
		NoPrograms: "engine/enginetest executes nothing",
	})
}
