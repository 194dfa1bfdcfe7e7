package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func python(name string) Zygote { return Zygote{Name: name, Command: []string{"python3"}} }

func TestValidateZygotes(t *testing.T) {
	with := func(change func(*Zygote)) []Zygote {
		z := python("a")
		change(&z)
		return []Zygote{z}
	}
	many := func(n int) (all []Zygote) {
		for i := range n {
			all = append(all, python(fmt.Sprint(i)))
		}
		return all
	}
	modules := func(names ...string) []Zygote { return with(func(z *Zygote) { z.Preload = names }) }
	command := func(args ...string) []Zygote { return with(func(z *Zygote) { z.Command = args }) }
	for _, c := range []struct {
		name    string
		zygotes []Zygote
		field   string
	}{
		{"none", nil, ""},
		{"one", many(1), ""},
		{"most", many(MaxZygotes), ""},
		{"too many", many(MaxZygotes + 1), "zygotes"},
		{"no name", with(func(z *Zygote) { z.Name = "" }), "zygotes[0].name"},
		{"name upper case", with(func(z *Zygote) { z.Name = "Py" }), "zygotes[0].name"},
		{"name hyphen first", with(func(z *Zygote) { z.Name = "-a" }), "zygotes[0].name"},
		{"name of 32", with(func(z *Zygote) { z.Name = strings.Repeat("a", 32) }), ""},
		{"name of 33", with(func(z *Zygote) { z.Name = strings.Repeat("a", 33) }), "zygotes[0].name"},
		{"name twice", []Zygote{python("a"), python("b"), python("a")}, "zygotes[2].name"},
		{"match twice", []Zygote{{Name: "a", Command: []string{"python3"}, Match: true}, {Name: "b", Command: []string{"python3"}, Match: true}}, "zygotes[1].match"},
		{"match once", []Zygote{{Name: "a", Command: []string{"python3"}, Match: true}, {Name: "b", Command: []string{"python3"}}}, ""},
		{"no command", command(), "zygotes[0].command"},
		{"command with options", command("python3", "-I", "-OO", "-S"), ""},
		{"command with another option", command("python3", "-u"), "zygotes[0].command[1]"},
		{"command with an option twice", command("python3", "-I", "-I"), "zygotes[0].command[2]"},
		{"command with a program", command("python3", "x.py"), "zygotes[0].command[1]"},
		{"command path", command("/usr/local/bin/python3.12"), ""},
		{"command relative", command("bin/python3"), "zygotes[0].command[0]"},
		{"command of another language", command("node"), "zygotes[0].command[0]"},
		{"command NUL", command("python3\x00"), "zygotes[0].command[0]"},
		{"command too long", command("/" + strings.Repeat("a/", 2100) + "python3"), "zygotes[0].command[0]"},
		{"modules", modules("json", "os.path", "_x9"), ""},
		{"module empty", modules("json", ""), "zygotes[0].preload[1]"},
		{"module code", modules("json; print()"), "zygotes[0].preload[0]"},
		{"module digit", modules("9a"), "zygotes[0].preload[0]"},
		{"module relative", modules(".a"), "zygotes[0].preload[0]"},
		{"module long", modules(strings.Repeat("a", 129)), "zygotes[0].preload[0]"},
		{"too many modules", modules(slices.Repeat([]string{"json"}, 65)...), "zygotes[0].preload"},
		{"most spares", with(func(z *Zygote) { z.Spares = MaxSpares }), ""},
		{"too many spares", with(func(z *Zygote) { z.Spares = MaxSpares + 1 }), "zygotes[0].spares"},
		{"negative spares", with(func(z *Zygote) { z.Spares = -1 }), "zygotes[0].spares"},
	} {
		wantField(t, c.name, Spec{Zygotes: c.zygotes}.Validate(), c.field)
	}
	wantField(t, "unpacks", Spec{Unpacks: true, Zygotes: many(1)}.Validate(), "zygotes")
}

func TestFindZygote(t *testing.T) {
	all := []Zygote{
		{Name: "old", Command: []string{"/opt/python2"}, Match: true},
		{Name: "bare", Command: []string{"python3"}},
		{Name: "py", Command: []string{"python3"}, Match: true},
		{Name: "isolated", Command: []string{"python3", "-I"}, Match: true},
	}
	for _, c := range []struct {
		name  string
		args  string
		want  string
		field string
	}{
		{"", "python3 -c pass", "py", ""},
		{"", "python3", "py", ""},
		{"", "python3 -I x", "isolated", ""},
		{"", "python3 x -I", "py", ""},
		{"isolated", "python3 x", "", "zygote"},
		{"", "/opt/python2 x", "old", ""},
		{"", "python2 x", "", ""},
		{"", "python3.12", "", ""},
		{"", "sh -c python3", "", ""},
		{"bare", "python3 x", "bare", ""},
		{"py", "python3 x", "py", ""},
		{"py", "/opt/python2 x", "", "zygote"},
		{"node", "python3", "", "zygote"},
	} {
		z, err := FindZygote(all, c.name, strings.Fields(c.args))
		wantField(t, c.name+": "+c.args, err, c.field)
		if got := z; (got == nil) != (c.want == "") || got != nil && got.Name != c.want {
			t.Errorf("%s: %s: %+v, want %q", c.name, c.args, got, c.want)
		}
	}
	_, err := FindZygote(nil, "py", []string{"python3"})
	wantField(t, "no zygotes", err, "zygote")
}
