package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Picture is a plot as SVG.
type Picture struct {
	Name  string // of a file, without extension
	Title string
	SVG   template.HTML
}

var (
	ink  = color.RGBA{0x1f, 0x6f, 0xb4, 0xff}
	mark = color.RGBA{0xb0, 0x30, 0x20, 0xff}
)

// Pictures draws the report: for each section the ratios to bare with their intervals, the waterfall
// of a birth, and how figures grow with numbers of clients and boxes.
func (r *Report) Pictures() (list []Picture, err error) {
	var sections []string
	for _, row := range r.Rows {
		if !slices.Contains(sections, row.Section) {
			sections = append(sections, row.Section)
		}
	}
	for _, section := range sections {
		if section == scaleSection { // it has lines instead
			continue
		}
		p, err := r.bars(section)
		if err != nil {
			return nil, fmt.Errorf("drawing section %s: %w", section, err)
		}
		if p != nil {
			list = append(list, *p)
		}
	}
	if len(r.Birth) > 0 {
		p, err := r.waterfall()
		if err != nil {
			return nil, fmt.Errorf("drawing the birth of a box: %w", err)
		}
		list = append(list, p)
	}
	for _, s := range scales {
		p, err := r.scaling(s)
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", s.name, err)
		}
		if p != nil {
			list = append(list, *p)
		}
	}
	return list, nil
}

// bars draws the ratios of a section; nil without any.
func (r *Report) bars(section string) (*Picture, error) {
	var values plotter.Values
	var names []string
	var errors plotter.XErrors
	var points plotter.XYs
	rows := slices.Clone(r.Rows)
	slices.Reverse(rows) // the first one on top
	for _, row := range rows {
		if row.Section != section || row.Ratio == 0 {
			continue
		}
		points = append(points, plotter.XY{X: row.Ratio, Y: float64(len(values))})
		errors = append(errors, struct{ Low, High float64 }{row.Ratio - row.RatioLo, row.RatioHi - row.Ratio})
		values = append(values, row.Ratio)
		names = append(names, fmt.Sprintf("%s  %.2f", row.Name, row.Ratio))
	}
	if len(values) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.X.Label.Text = "ratio to bare (the line is 1); the interval covers 95 %"
	p.X.Min = 0
	bars, err := plotter.NewBarChart(values, vg.Points(12))
	if err != nil {
		return nil, err
	}
	bars.Horizontal, bars.Color, bars.LineStyle.Width = true, ink, 0
	intervals, err := plotter.NewXErrorBars(struct {
		plotter.XYs
		plotter.XErrors
	}{points, errors})
	if err != nil {
		return nil, err
	}
	one, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.6}, {X: 1, Y: float64(len(values)) - 0.4}})
	if err != nil {
		return nil, err
	}
	one.Color, one.Width = mark, vg.Points(1)
	p.Add(bars, intervals, one)
	p.NominalY(names...)
	svg, err := render(p, 8*vg.Inch, vg.Points(float64(70+22*len(values))))
	return &Picture{Name: section, Title: section, SVG: svg}, err
}

// waterfall draws the steps of a birth, each from the end of the one before to its own.
func (r *Report) waterfall() (Picture, error) {
	p := plot.New()
	p.X.Label.Text = "ms since the request"
	p.X.Min = 0
	var names []string
	begin := 0.0
	for i, step := range slices.Backward(r.Birth) {
		begin = 0
		if i > 0 {
			begin = r.Birth[i-1].At
		}
		y := float64(len(names))
		box, err := plotter.NewPolygon(plotter.XYs{{X: begin / 1e6, Y: y - 0.35}, {X: step.At / 1e6, Y: y - 0.35}, {X: step.At / 1e6, Y: y + 0.35}, {X: begin / 1e6, Y: y + 0.35}})
		if err != nil {
			return Picture{}, err
		}
		box.Color, box.LineStyle.Width = ink, 0
		p.Add(box)
		names = append(names, fmt.Sprintf("%s  %.2f", step.What, (step.At-begin)/1e6))
	}
	p.NominalY(names...)
	svg, err := render(p, 8*vg.Inch, vg.Points(float64(70+22*len(names))))
	return Picture{Name: "birth", Title: "birth of a box", SVG: svg}, err
}

// scale is a figure by a number, which is the end of the rows' names: "scale.exec.4".
type scale struct{ name, title, x, y string }

const scaleSection = "scale"

var scales = []scale{
	{"scale.clients", "commands per second by number of clients", "clients", "per second"},
	{"scale.boxes", "birth of a box by number of boxes that exist", "boxes", "ms"},
}

func (r *Report) scaling(s scale) (*Picture, error) {
	var line, bare plotter.XYs
	for _, row := range r.Rows {
		number, ok := strings.CutPrefix(row.Name, s.name+".")
		var n float64
		if _, err := fmt.Sscan(number, &n); !ok || err != nil || row.P50 == 0 {
			continue
		}
		unit := 1.0
		if row.Unit == Nanoseconds {
			unit = 1e6
		}
		line = append(line, plotter.XY{X: n, Y: row.P50 / unit})
		if row.BareP50 > 0 {
			bare = append(bare, plotter.XY{X: n, Y: row.BareP50 / unit})
		}
	}
	if len(line) < 2 {
		return nil, nil
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = s.x, s.y
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	for _, l := range []struct {
		name   string
		points plotter.XYs
		color  color.Color
	}{{"boxd", line, ink}, {"bare", bare, mark}} {
		if len(l.points) == 0 {
			continue
		}
		drawn, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, err
		}
		drawn.Color, dots.Color, dots.Shape = l.color, l.color, draw.CircleGlyph{}
		p.Add(drawn, dots)
		p.Legend.Add(l.name, drawn)
	}
	p.Y.Max = math.Max(p.Y.Max, 1)
	svg, err := render(p, 8*vg.Inch, 3*vg.Inch)
	return &Picture{Name: s.name, Title: s.title, SVG: svg}, err
}

// render draws a plot as an SVG element.
func render(p *plot.Plot, width, height vg.Length) (template.HTML, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	_, svg, ok := strings.Cut(b.String(), "<svg") // without the declaration and the document type of a file
	if !ok {
		return "", fmt.Errorf("the plot is no SVG")
	}
	// The reader's machine has other fonts than those that the labels were measured with: a little
	// smaller, they fit in all of them.
	opening, rest, _ := strings.Cut(svg, ">")
	const style = `<style>text { font-family: "Liberation Sans", Arial, Helvetica, sans-serif !important; font-size: 10px !important }</style>`
	return template.HTML("<svg" + opening + ">" + style + rest), nil
}

// WriteHTML writes one page that needs no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	pictures, err := r.Pictures()
	if err != nil {
		return err
	}
	var lines [][]string
	for _, row := range r.Rows {
		lines = append(lines, row.cells())
	}
	return page.Execute(w, map[string]any{"Report": r, "Pictures": pictures, "Heading": heading, "Lines": lines, "Notes": r.notes()})
}

var page = template.Must(template.New("").Funcs(template.FuncMap{"join": strings.Join}).Parse(`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>What isolation costs: boxd bench</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; white-space: nowrap }
svg { max-width: 100%; height: auto }
.noisy { background: #fff0d8; padding: .5em 1em }
code { background: #f3f3f3 }
</style>
<h1>What isolation costs</h1>
<p>{{.Report.About}}</p>
<p><code>{{join .Report.Command " "}}</code>, {{.Report.Began}}, {{printf "%.0f" .Report.Seconds}} s</p>
{{range .Report.Noise.Warnings}}<p class="noisy">{{.}}</p>{{end}}
{{range .Pictures}}<h2>{{.Title}}</h2>
{{.SVG}}
{{end}}
<h2>All figures</h2>
<table>
<tr>{{range .Heading}}<th>{{.}}{{end}}
{{range .Lines}}<tr>{{range .}}<td>{{.}}{{end}}
{{end}}</table>
<h2>Notes</h2>
<ul>
{{range .Notes}}<li>{{.}}
{{end}}</ul>
</html>
`))
