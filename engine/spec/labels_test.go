package spec

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestLabels(t *testing.T) {
	many := Labels{}
	for i := range MaxLabels + 1 {
		many[fmt.Sprint("k", i)] = ""
	}
	heavy := Labels{}
	for i := range 17 {
		heavy[fmt.Sprint("k", i)] = strings.Repeat("v", MaxLabelValue)
	}
	for _, c := range []struct {
		labels Labels
		field  string // of the refusal; empty: they are fine
	}{
		{nil, ""},
		{Labels{"a": "", "team/x.y_z-1": "é = anything, \"quoted\"", strings.Repeat("k", MaxLabelKey): strings.Repeat("v", MaxLabelValue)}, ""},
		{many, "labels"}, {heavy, "labels"},
		{Labels{"": "x"}, "labels"}, {Labels{strings.Repeat("k", MaxLabelKey+1): ""}, "labels"}, {Labels{"-a": ""}, "labels"}, {Labels{"a b": ""}, "labels"}, {Labels{"é": ""}, "labels"}, {Labels{"a=b": ""}, "labels"},
		{Labels{"a": strings.Repeat("v", MaxLabelValue+1)}, "labels.a"}, {Labels{"a": "x\ny"}, "labels.a"}, {Labels{"a": "\xff"}, "labels.a"}, {Labels{"a": "\x1b[31m"}, "labels.a"},
	} {
		err := c.labels.Validate("labels")
		var bad *FieldError
		if errors.As(err, &bad) != (c.field != "") || bad != nil && bad.Field != c.field {
			t.Errorf("%.60q: %v, want field %q", c.labels, err, c.field)
		}
	}
	delete(many, "k0")
	if err := many.Validate("labels"); err != nil {
		t.Error(err)
	}

	have, b := Labels{"a": "1", "gone": "x"}, "2"
	if got := have.With(map[string]*string{"b": &b, "gone": nil, "never": nil}); !maps.Equal(got, Labels{"a": "1", "b": "2"}) || len(have) != 2 {
		t.Errorf("%v of %v", got, have)
	}
}

func TestName(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "Ada's lab – 3": true, " x": false, "x\n": false, "\xff": false, strings.Repeat("n", MaxName+1): false} {
		if err := ValidateName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSelector(t *testing.T) {
	labels := Labels{"team": "a", "empty": "", "x": "y=z"}
	for terms, want := range map[string]bool{
		"": true, "team=a": true, "team": true, "team=b": false, "team=": false, "empty=": true, "empty": true, "empty=a": false,
		"no": false, "x=y=z": true, "team=a,x": true, "team=a,no": false,
	} {
		var list []string
		if terms != "" {
			list = strings.Split(terms, ",")
		}
		s, err := ParseSelector(list)
		if err != nil || s.Matches(labels) != want {
			t.Errorf("%q: %v, %v", terms, s.Matches(labels), err)
		}
	}
	for _, bad := range []string{"", "=a", "a b=c", strings.Repeat("k", 64)} {
		if _, err := ParseSelector([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// FuzzSelector: a selector made of a label chooses it, and what is taken never chooses labels without its key.
func FuzzSelector(f *testing.F) {
	for _, term := range []string{"a=b", "a", "a=", "=", "", "a=b=c", "team/x=é", "a b", "\xff=1", "a=\x00"} {
		f.Add(term, "a", "b")
	}
	f.Fuzz(func(t *testing.T, term, key, value string) {
		labels := Labels{key: value}
		valid := labels.Validate("labels") == nil
		if valid {
			for _, own := range []string{key, key + "=" + value} {
				if s, err := ParseSelector([]string{own}); err != nil || !s.Matches(labels) {
					t.Errorf("%q does not choose %v: %v", own, labels, err)
				}
			}
			if MetricLabel(key) == "" || strings.ContainsAny(MetricLabel(key), "-./") {
				t.Errorf("%q is %q in metrics", key, MetricLabel(key))
			}
		}
		s, err := ParseSelector([]string{term})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Errorf("error of %q: %q", term, err)
			}
			return
		}
		wanted, content, withValue := strings.Cut(term, "=")
		if got, want := s.Matches(labels), wanted == key && (!withValue || content == value); got != want {
			t.Errorf("%q chooses %v: %v", term, labels, got)
		}
		if s.Matches(nil) {
			t.Errorf("%q chooses no labels", term)
		}
	})
}
