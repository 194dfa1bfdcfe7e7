package langbot

import (
	"testing"

	"github.com/boxd/boxd/test/containerd"
)

func TestOnContainerd(t *testing.T) {
	onEngine(t, []string{"BOXD_ENGINES=containerd", "BOXD_CONTAINERD_ADDRESS=" + containerd.Start(t).Address})
}
