package session

import (
	"context"
	"fmt"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/session/imageuser"
)

// imageUsers remembers the users of images, which are as immutable as the images.
type imageUsers struct {
	mu   sync.Mutex
	byID map[string]engine.User // by digest and name
}

// keepUsers bounds the users that are remembered.
const keepUsers = 1024

func (i *sessionImage) userKey() string { return i.Digest + " " + i.User }

func (u *imageUsers) get(i *sessionImage) (engine.User, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	user, ok := u.byID[i.userKey()]
	return user, ok
}

func (u *imageUsers) put(i *sessionImage, user engine.User) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byID == nil || len(u.byID) >= keepUsers {
		u.byID = map[string]engine.User{}
	}
	u.byID[i.userKey()] = user
}

// userOf returns the user who runs the commands of an image, by number. A name is looked up in a box with nothing
// but the image, which userOf makes and removes. It counts in no quota, because the session has reserved what its
// own box takes and has none yet.
func (m *Manager) userOf(ctx context.Context, image string, own *sessionImage) (engine.User, error) {
	if u, ok, err := imageuser.Number(own.User); ok {
		return u, err
	}
	if u, found := m.imageUsers.get(own); found {
		return u, nil
	}
	wanted := imageuser.Spec(image, own.Layers)
	wanted.ID = newBoxID()
	box, err := m.engine.Create(ctx, wanted)
	if err != nil {
		return engine.User{}, fmt.Errorf("creating a box to look up its user: %w", causeOf(ctx, err))
	}
	defer m.removeLater(box)
	u, err := imageuser.Find(ctx, box, own.User)
	if err == nil {
		m.imageUsers.put(own, u)
	}
	return u, err
}
