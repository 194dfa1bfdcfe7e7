// Package flagtext reads the values of flags that describe a box and a command. It is linked into the part of
// boxd that has to start fast, so it knows no flags and no commands.
package flagtext

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Unlimited is the word for no limit, Proxy the value of --network for a box with a proxy.
const (
	Unlimited = "unlimited"
	Proxy     = "proxy"
)

// ErrZero refuses a zero: docker would take it as unlimited, other programs as nothing at all.
var ErrZero = errors.New(`must be more than 0; leave the flag out for the default`)

// Setting makes wish, the field of t, point to the value of text.
func Setting(t *spec.Setting, wish reflect.Value, text string) error {
	given := reflect.New(wish.Type().Elem())
	value := given.Elem()
	if t.Name == "network" { // the words of boxd run --network
		text = cmp.Or(map[string]string{Proxy: "true", spec.None: "false"}[text], text)
	}
	if text == Unlimited && t.Unlimited {
		value.Set(reflect.ValueOf(spec.Unlimited).Convert(value.Type()))
	} else if err := parseSetting(value, text); err != nil {
		return err
	} else if value.IsZero() && value.Kind() != reflect.Bool && t.Zero == "" {
		return ErrZero
	}
	wish.Set(given)
	return nil
}

// parseSetting reads text into value according to its type. It refuses negative values.
func parseSetting(value reflect.Value, text string) error {
	switch to := value.Addr().Interface().(type) {
	case *spec.Size:
		n, err := spec.ParseSize(text) // UnmarshalText would accept "unlimited"
		*to = spec.Size(n)
		return err
	case *spec.Duration:
		return Duration(to, text)
	case *string:
		*to = text // the daemon checks it
		return nil
	case *bool:
		b, err := strconv.ParseBool(text)
		*to = b
		return err
	case *float64:
		n, err := spec.ParseCPUs(text)
		*to = n
		return err
	case *int64:
		n, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			return errors.New("must be a whole number")
		}
		*to = int64(n)
		return nil
	}
	panic("flagtext: no way to parse a " + value.Type().String())
}

// Duration reads a spec.Duration and refuses a negative one.
func Duration(d *spec.Duration, text string) error {
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if *d < 0 {
		return ErrZero
	}
	return nil
}

// Time reads a duration above 0; a bare number is in seconds, as for timeout(1).
func Time(dst *time.Duration, text string) error {
	err := Duration((*spec.Duration)(dst), text)
	if err == nil && *dst == 0 {
		err = ErrZero
	}
	return err
}

// Size reads a size above 0, or "unlimited" if that is allowed.
func Size(dst *int64, text string, mayBeUnlimited bool) error {
	if text == Unlimited && mayBeUnlimited {
		*dst = spec.Unlimited
		return nil
	}
	n, err := spec.ParseSize(text)
	if err == nil && n == 0 {
		err = ErrZero
	}
	*dst = n
	return err
}

// User reads UID[:GID]. It takes no names, because they would have to be looked up in the
// box, which does not exist yet.
func User(s string) (spec.User, error) {
	uidText, gidText, hasGID := strings.Cut(s, ":")
	if !hasGID {
		gidText = uidText
	}
	uid, err := strconv.ParseUint(uidText, 10, 31)
	gid, gidErr := strconv.ParseUint(gidText, 10, 31)
	if err != nil || gidErr != nil {
		return spec.User{}, fmt.Errorf("must be UID or UID:GID, numbers from 0 to %d", spec.MaxID)
	}
	return spec.User{UID: int(uid), GID: int(gid)}, nil
}

// Environment is a list of KEY=VALUE without duplicates.
type Environment struct {
	List  []string
	index map[string]int
}

// Set adds KEY=VALUE, or KEY with its value in the caller's environment. Like docker and podman,
// it omits a KEY that is not set there.
func (e *Environment) Set(kv string, lookup func(string) (string, bool)) error {
	name := Key(kv)
	if name == "" || strings.ContainsAny(name, " \t") {
		return fmt.Errorf("must be KEY=VALUE or KEY, and KEY has no blanks")
	}
	if name == kv {
		value, ok := lookup(name)
		if !ok {
			return nil
		}
		kv += "=" + value
	}
	if i, ok := e.index[name]; ok {
		e.List[i] = kv
		return nil
	}
	if e.index == nil {
		e.index = map[string]int{}
	}
	e.index[name] = len(e.List)
	e.List = append(e.List, kv)
	return nil
}

// Key returns the name of a variable, for messages: the value is often secret.
func Key(kv string) string {
	name, _, _ := strings.Cut(kv, "=")
	return name
}
