package cli

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// layerBars show how far the layers of an image are, on stderr: on a terminal by a line for each layer that is redrawn,
// otherwise by a line for each step.
type layerBars struct {
	out    screen
	width  int // of the terminal
	most   int // lines
	layers []apitypes.ImageProgress
	drawn  int // lines
}

// newLayerBars returns bars that show nothing if quiet is set.
func (a *App) newLayerBars(quiet bool) *layerBars {
	b := &layerBars{out: a.screen(a.Stderr), width: 80, most: 20}
	if quiet {
		b.most = 0
	} else if f := asTerminal(a.Stderr); f != nil {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 0 && ws.Row > 1 {
			b.width, b.most = int(ws.Col), int(ws.Row)-1
		}
	}
	return b
}

// show is called for each step.
func (b *layerBars) show(p apitypes.ImageProgress) {
	if b.most == 0 {
		return
	}
	at := -1
	for i := range b.layers {
		if b.layers[i].Layer == p.Layer {
			at = i
		}
	}
	known := at >= 0
	if !known {
		at = len(b.layers)
		b.layers = append(b.layers, p)
	}
	changed := !known || b.layers[at].Step != p.Step
	b.layers[at] = p
	switch {
	case b.out.terminal:
		b.draw()
	case changed:
		fmt.Fprintln(b.out, b.line(p))
	}
}

func (b *layerBars) line(p apitypes.ImageProgress) string {
	name := "image"
	if _, digits, ok := strings.Cut(p.Layer, ":"); ok {
		name = "layer " + digits[:min(len(digits), 12)]
	}
	text := printable(name + " " + p.Step)
	switch {
	case p.Total > 0 && b.out.terminal && p.Step != "done":
		done := min(p.Done, p.Total)
		full := int(float64(done) / float64(p.Total) * progressCells)
		text += fmt.Sprintf(" [%s%s] %s of %s", strings.Repeat("#", full), strings.Repeat("-", progressCells-full), spec.FormatSize(done), spec.FormatSize(p.Total))
	case p.Total > 0:
		text += " " + spec.FormatSize(p.Total)
	}
	return text
}

// draw replaces the lines, of which the last are shown if the terminal is too small.
func (b *layerBars) draw() {
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn) // cursor up: ECMA-48
	}
	shown := b.layers[max(0, len(b.layers)-b.most):]
	for _, p := range shown {
		line := b.line(p)
		fmt.Fprintf(&text, "\r%s%s\n", line[:min(len(line), b.width-1)], eraseLine)
	}
	b.drawn = len(shown)
	fmt.Fprint(b.out, text.String())
}
