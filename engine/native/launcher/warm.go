package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/command"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// warmTime bounds the start of the zygotes of a blank box and the making of their spares, for which no other box is
// built. A client that starts a zygote waits longer.
const warmTime = 20 * time.Second

// carried are the zygotes of a blank box, with spares that wait. The launcher starts them as a client would, over a
// connection that it gives to the client of the box: they end with their connection.
type carried struct {
	conn   *os.File
	warm   []rpc.Warm
	spares []*cgroups.Slot // in the order of those in warm
}

// close ends the zygotes and their spares. The cgroups go with the box.
func (c *carried) close() {
	if c != nil {
		c.conn.Close()
	}
}

// warmAhead starts the zygotes of a blank box and makes their spares. After a failure the box has none of them.
func (l *Launcher) warmAhead(b *box) error {
	defer b.work.begin("starting its interpreters", "", nil)()
	conn, err := b.connect()
	if err != nil {
		return err
	}
	b.carried = &carried{conn: conn}
	started, err := b.carried.start(b)
	if err == nil {
		return nil
	}
	b.carried.close()
	b.carried = nil
	for _, s := range started {
		_ = b.killSlot(s) // with what the interpreter has started itself
		l.release(b, s.Name)
	}
	return fmt.Errorf("starting an interpreter ahead of time: %w", err)
}

// start starts the zygotes one after the other. It returns the slots that it has made, also after a failure.
func (c *carried) start(b *box) (made []*cgroups.Slot, err error) {
	ours, err := linux.Dup(c.conn)
	if err != nil {
		return nil, err
	}
	agent, err := wire.FileConn(ours)
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	defer time.AfterFunc(warmTime, func() { agent.Close() }).Stop()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	newSlot := func() (*cgroups.Slot, error) {
		s, err := b.newSlot()
		if err == nil {
			made = append(made, s)
		}
		return s, err
	}
	id := uint32(0)
	for i, z := range b.spec.Zygotes {
		s, err := newSlot()
		if err != nil {
			return made, err
		}
		id++
		w := rpc.Warm{Zygote: i, ID: id, Slot: s.Name}
		ask := command.Zygote(z, b.spec.User, b.spec, b.spec.Limits)
		ask.Spawn.Tasks = uint32(len(s.Tasks))
		err = agent.Send(wire.TypeZygote, w.ID, ask.Marshal(), slices.Concat([]*os.File{null, null, null, s.Dir}, s.Tasks)...)
		if err == nil {
			err = awaitWarm(agent, w.ID)
		}
		if err = errors.Join(err, s.Close()); err != nil { // only its name is needed from now on
			return made, err
		}
		for range min(z.Spares, rpc.MaxCarried/len(b.spec.Zygotes)) {
			s, err := newSlot()
			if err != nil {
				return made, err
			}
			procs, err := s.OpenProcs()
			if err != nil {
				return made, err
			}
			id++
			c.spares, w.Spares = append(c.spares, s), append(w.Spares, id)
			ask := wire.SpareMsg{Zygote: w.ID, Tasks: uint32(len(s.Tasks))}
			err = agent.Send(wire.TypeSpare, id, ask.Marshal(), append(slices.Clone(s.Tasks), procs)...)
			procs.Close()
			if err != nil {
				return made, err
			}
		}
		for _, spare := range w.Spares {
			if _, err := awaitAbout(agent, spare, wire.TypeWaiting); err != nil {
				return made, err
			}
		}
		for _, s := range c.spares {
			s.CloseBirth()
		}
		c.warm = append(c.warm, w)
	}
	return made, nil
}

// awaitWarm waits until a zygote can make spares.
func awaitWarm(agent *wire.Conn, id uint32) error {
	if _, err := awaitAbout(agent, id, wire.TypeStarted); err != nil {
		return err
	}
	body, err := awaitAbout(agent, id, wire.TypeWarm)
	if err != nil {
		return err
	}
	var m wire.WarmMsg
	if err := m.Unmarshal(body); err != nil {
		return err
	}
	if m.Why != "" {
		return errors.New(m.Why)
	}
	return nil
}

// awaitAbout returns the body of the agent's next frame of type typ about id.
func awaitAbout(agent *wire.Conn, id uint32, typ byte) ([]byte, error) {
	for {
		frame, err := agent.Receive()
		if errors.Is(err, net.ErrClosed) {
			err = fmt.Errorf("no answer in %v", warmTime)
		}
		if err != nil {
			return nil, err
		}
		frame.Close()
		switch {
		case frame.Type == wire.TypeFailed:
			failed := new(wire.FailedMsg)
			return nil, errors.Join(failed.Unmarshal(frame.Body), failed)
		case frame.Type == wire.TypeExited:
			return nil, errors.New("it has ended")
		case frame.ID == id && frame.Type == typ:
			return frame.Body, nil
		}
	}
}

// describe fills in what the client gets about the zygotes, and returns the descriptors of the slots of spares.
func (c *carried) describe(created *rpc.Created) (files []*os.File) {
	created.Warm = c.warm
	for _, s := range c.spares {
		m, slotFiles := describe(s, nil)
		created.Spares, files = append(created.Spares, m), append(files, slotFiles...)
	}
	return files
}
