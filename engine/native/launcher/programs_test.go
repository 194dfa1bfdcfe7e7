package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/native/programs"
)

// TestOverwrittenProgram: no box gets a program that was overwritten since it was opened, not at a second attempt either.
func TestOverwrittenProgram(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{programs.Init, programs.Agent, programs.Unpacker} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x7fELF"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	init, err := os.Open(filepath.Join(dir, programs.Init))
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	f, err := programs.Beside(init)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	agent := sealedProgram{name: programs.Agent, source: f.Agent, stamp: f.AgentStamp}
	unpacker := sealedProgram{name: programs.Unpacker, source: f.Unpacker, stamp: f.UnpackerStamp}
	if err := os.WriteFile(filepath.Join(dir, programs.Agent), []byte("\x7fELF of another build"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := agent.get(); err == nil || !strings.Contains(err.Error(), "boxd-agent was overwritten; restart the launcher") {
			t.Errorf("overwritten: %v", err)
		}
		if _, err := unpacker.get(); err != nil {
			t.Errorf("as it was: %v", err)
		}
	}
	unpacker.sealed.Close()
}
