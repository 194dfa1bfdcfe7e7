package launcher

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/sealed"
	"golang.org/x/sys/unix"
)

// errNoPrograms: the launcher was started by hand in a way that only boxd can.
var errNoPrograms = errors.New("a launcher that runs from a sealed copy needs " + programs.Option)

// boxPrograms are the programs that PID 1 of boxes executes, as sealed copies that every box of this
// launcher shares: none can change the program of another (CVE-2019-5736).
type boxPrograms struct{ agent, unpacker sealedProgram }

// open takes the files of the programs, and begins to copy the one that every box needs.
func (p *boxPrograms) open(f programs.Files) {
	p.agent = sealedProgram{name: programs.Agent, source: f.Agent, stamp: f.AgentStamp}
	p.unpacker = sealedProgram{name: programs.Unpacker, source: f.Unpacker, stamp: f.UnpackerStamp}
	go func() { _, _ = p.agent.get() }() // the first box gets the error
}

// of returns the program for PID 1 of a box, O_PATH. It is the launcher's.
func (p *boxPrograms) of(s engine.Spec) (*os.File, error) {
	if s.Unpacks {
		return p.unpacker.get()
	}
	return p.agent.get()
}

type sealedProgram struct {
	name   string
	source *os.File
	stamp  programs.Stamp // of source when whoever started this launcher opened it

	copying sync.Mutex // held to make the copy
	sealed  *os.File   // O_PATH; nil before it is needed
}

func (p *sealedProgram) get() (*os.File, error) {
	p.copying.Lock()
	defer p.copying.Unlock()
	if p.sealed != nil {
		return p.sealed, nil
	}
	f, err := sealed.Copy(p.source, p.name)
	if err != nil {
		return nil, fmt.Errorf("program for PID 1 of boxes: %w", err)
	}
	defer f.Close()
	if err := p.stamp.Check(p.source, p.name); err != nil { // what was copied may be of another build, or half a file
		return nil, fmt.Errorf("program for PID 1 of boxes: %w", err)
	}
	p.sealed, err = os.OpenFile(linux.FdPath(f), unix.O_PATH, 0)
	return p.sealed, err
}
