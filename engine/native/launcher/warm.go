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
// built and none is removed. A client that starts a zygote waits longer.
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

// warmAhead starts the zygotes of a blank box and makes their spares. It gives up when stop is closed. After a failure the
// caller removes the box. It is no step of the work that builds the box: an interpreter that takes long with its imports is no
// sign that this launcher hangs.
func (b *box) warmAhead(stop <-chan struct{}) error {
	conn, err := b.connect()
	if err != nil {
		return err
	}
	b.carried = &carried{conn: conn}
	if err := b.carried.start(b, stop); err != nil {
		return fmt.Errorf("starting an interpreter ahead of time: %w", err)
	}
	use, err := b.group.Detail()
	b.warmth = max(use.Anon, 1) // its other pages belong to files, and are those of all boxes
	return err
}

// start starts the zygotes one after the other.
func (c *carried) start(b *box, stop <-chan struct{}) error {
	ours, err := linux.Dup(c.conn)
	if err != nil {
		return err
	}
	agent, err := wire.FileConn(ours)
	if err != nil {
		return err
	}
	defer agent.Close()
	ready := make(chan struct{})
	defer close(ready)
	go func() {
		late := time.NewTimer(warmTime)
		defer late.Stop()
		select {
		case <-late.C:
		case <-stop:
		case <-ready:
		}
		agent.Close() // ends a Receive
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	id := uint32(0)
	for i, z := range b.spec.Zygotes {
		s, err := b.newSlot()
		if err != nil {
			return err
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
			return err
		}
		for range min(z.Spares, rpc.MaxCarried/len(b.spec.Zygotes)) {
			s, err := b.newSlot()
			if err != nil {
				return err
			}
			procs, err := s.OpenProcs()
			if err != nil {
				return err
			}
			id++
			c.spares, w.Spares = append(c.spares, s), append(w.Spares, id)
			ask := wire.SpareMsg{Zygote: w.ID, Tasks: uint32(len(s.Tasks))}
			err = agent.Send(wire.TypeSpare, id, ask.Marshal(), append(slices.Clone(s.Tasks), procs)...)
			procs.Close()
			if err != nil {
				return err
			}
		}
		first := len(c.spares) - len(w.Spares)
		for i, spare := range w.Spares {
			if _, err := awaitAbout(agent, spare, wire.TypeWaiting); err != nil {
				return err
			}
			c.spares[first+i].CloseBirth()
		}
		c.warm = append(c.warm, w)
	}
	return nil
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
		linux.CloseForeign(frame.FDs) // none are expected
		frame.FDs = nil
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
