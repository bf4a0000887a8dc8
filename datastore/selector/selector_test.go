package selector

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

func TestCanonicalForm(t *testing.T) {
	for _, c := range []struct{ rule, in, want string }{
		{"empty means all", "", `all()`},
		{"blanks mean all", " \t ", `all()`},
		{"all", "all()", `all()`},
		{"inner blanks in functions", "all(  ) && has( a\t) && global( )", `(all() && has(a) && global())`},
		{"equality", "a=='b'", `a == "b"`},
		{"inequality", "a !='b'", `a != "b"`},
		{"contains", "a contains 'b'", `a contains "b"`},
		{"contains glued to its string", "a contains'b'", `a contains "b"`},
		{"starts with in both spellings", "a starts with 'b' || a startswith 'c'",
			`(a starts with "b" || a starts with "c")`},
		{"ends with in both spellings", "a ends with 'b' || a endswith 'c'", `(a ends with "b" || a ends with "c")`},
		{"sets are sorted and unique", `a in {"c", 'b', "c"}`, `a in {"b", "c"}`},
		{"sets are sorted by byte", `a in {"b", "B", "é", ""}`, `a in {"", "B", "b", "é"}`},
		{"not in, in both spellings", "a not in {'x'} && b notin{'y'}", `(a not in {"x"} && b not in {"y"})`},
		{"in glued to its set", "a in{'x'}", `a in {"x"}`},
		{"empty set", "a in {}", `a in {}`},
		{"trailing comma in a set", "a in {'x',}", `a in {"x"}`},
		{"a double quote inside calls for single ones", `a == 'say "b"'`, `a == 'say "b"'`},
		{"a single quote inside", `a == "it's"`, `a == "it's"`},
		{"empty string", "a == ''", `a == ""`},
		{"no escapes in strings", `a == 'x\n'`, `a == "x\n"`},
		{"and binds tighter than or", "has(a) || has(b) && has(c)", `(has(a) || (has(b) && has(c)))`},
		{"not binds tightest", "!has(a) && has(b)", `(!has(a) && has(b))`},
		{"not of a comparison", "! a == 'b'", `!a == "b"`},
		{"double negation", "!!has(a)", `has(a)`},
		{"odd negation", "!!!has(a)", `!has(a)`},
		{"double negation around parentheses", "!(!has(a))", `has(a)`},
		{"negated group", "!(has(a) || has(b))", `!(has(a) || has(b))`},
		{"parentheses around one thing vanish", "((has(a)))", `has(a)`},
		{"chains stay flat", "has(a) && has(b) && has(c)", `(has(a) && has(b) && has(c))`},
		{"explicit groups of the same operator stay", "has(a) && (has(b) && has(c))", `(has(a) && (has(b) && has(c)))`},
		{"operator words are labels where a label stands", "in in {'in'} && not not in {'x'} && contains contains 'c'",
			`(in in {"in"} && not not in {"x"} && contains contains "c")`},
		{"function words are labels without a parenthesis", "has == 'a' && all == 'b' && global != 'c'",
			`(has == "a" && all == "b" && global != "c")`},
		{"all characters of labels", "-9_a./Z == 'x'", `-9_a./Z == "x"`},
		{"longest label", strings.Repeat("a", 512) + " == 'x'", strings.Repeat("a", 512) + ` == "x"`},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s, err := Parse(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if s.String() != c.want {
				t.Errorf("%q has the canonical form %q, want %q", c.in, s, c.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		rule, in string
		position int
		expected string // part of the message
	}{
		{"newline is no blank", "has(a)\n&& has(b)", 7, "unexpected character"},
		{"single =", "a = 'b'", 3, "expected =="},
		{"single &", "has(a) & has(b)", 8, "unexpected character"},
		{"single |", "has(a) | has(b)", 8, "unexpected character"},
		{"triple =", "a === 'b'", 5, "unexpected character"},
		{"no operator", "a", 2, "found the end: expected =="},
		{"no value", "a ==", 5, "a string in quotes"},
		{"value without quotes", "a == b", 6, "a string in quotes"},
		{"open string", "a == 'b", 6, "closing quote"},
		{"operator not a whole word", "a inx", 3, "in or not in"},
		{"operator not a whole word, glued to a digit", "a in1 {'x'}", 3, "in or not in"},
		{"set without braces", "a in 'b'", 6, `expected "{"`},
		{"open set", "a in {'b'", 10, `"}"`},
		{"comma alone in a set", "a in {,}", 7, `"}"`},
		{"label in a set", "a in {b}", 7, `"}"`},
		{"blank before the parenthesis of a function", "has (a)", 5, "expected =="},
		{"has without a label", "has()", 5, "a label"},
		{"has of a string", "has('a')", 5, "a label"},
		{"argument of all", "all(a)", 5, `")"`},
		{"open parenthesis", "(has(a)", 8, `")"`},
		{"closing parenthesis too many", "has(a))", 7, "the end"},
		{"empty parentheses", "()", 2, "a label"},
		{"trailing operator", "has(a) &&", 10, "a label"},
		{"leading operator", "|| has(a)", 1, "a label"},
		{"two operands without operator", "has(a) has(b)", 8, `"&&"`},
		{"not alone", "!", 2, "a label"},
		{"string alone", "'a'", 1, "a label"},
		{"foreign character", "a€ == 'x'", 2, "unexpected character"},
		{"label too long", strings.Repeat("a", 513) + " == 'x'", 1, "at most 512"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s, err := Parse(c.in)
			var e *syntaxError
			if !errors.As(err, &e) {
				t.Fatalf("%q gave %v, %v; want a *syntaxError", c.in, s, err)
			}
			if e.Position != c.position || !strings.Contains(e.Reason, c.expected) {
				t.Errorf("%q: %v; want position %d and %q", c.in, err, c.position, c.expected)
			}
		})
	}
}

func TestEvaluation(t *testing.T) {
	labels := map[string]string{"a": "bcd", "e": ""}
	for _, c := range []struct {
		rule, in string
		want     bool
	}{
		{"empty selects everything", "", true},
		{"all", "all()", true},
		{"global is true as well", "global()", true},
		{"has", "has(a)", true},
		{"has with an empty value", "has(e)", true},
		{"has of an absent label", "has(x)", false},
		{"equal", "a == 'bcd'", true},
		{"equality respects case", "a == 'BCD'", false},
		{"equal, absent", "x == ''", false},
		{"empty value equals the empty string", "e == ''", true},
		{"not equal", "a != 'bcd'", false},
		{"not equal to another", "a != 'b'", true},
		{"not equal, absent", "x != 'b'", true},
		{"contains", "a contains 'c'", true},
		{"contains not", "a contains 'x'", false},
		{"contains, absent", "x contains ''", false},
		{"starts with", "a starts with 'bc'", true},
		{"starts with, no", "a starts with 'cd'", false},
		{"starts with, absent", "x starts with ''", false},
		{"ends with", "a ends with 'cd'", true},
		{"ends with, no", "a ends with 'bc'", false},
		{"ends with, absent", "x ends with ''", false},
		{"in", "a in {'x', 'bcd'}", true},
		{"in, no", "a in {'x'}", false},
		{"in nothing", "a in {}", false},
		{"in, absent", "x in {'x'}", false},
		{"not in", "a not in {'x'}", true},
		{"not in, no", "a not in {'bcd'}", false},
		{"not in, absent", "x not in {'x'}", true},
		{"not", "!has(a)", false},
		{"not of an absent equality", "!x == 'y'", true},
		{"and", "has(a) && has(x)", false},
		{"or", "has(x) || has(a)", true},
		{"precedence", "has(a) || has(x) && has(y)", true},
		{"parentheses", "(has(a) || has(x)) && has(y)", false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s, err := Parse(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Matches(labels); got != c.want {
				t.Errorf("%q gave %v", c.in, got)
			}
		})
	}
}

// layers looks in its own labels first.
type layers []Map

func (l layers) Get(name string) (string, bool) {
	for _, m := range l {
		if v, ok := m[name]; ok {
			return v, true
		}
	}
	return "", false
}

func TestInheritedLabels(t *testing.T) {
	s, err := Parse("a == 'own' && b == 'inherited'")
	if err != nil {
		t.Fatal(err)
	}
	if !s.MatchesLabels(layers{{"a": "own"}, {"a": "hidden", "b": "inherited"}}) {
		t.Error("a label of an endpoint must win over the inherited one")
	}
}

// Calico derives the identifier of a selector from its canonical text. The values were computed from that definition
// with another program.
func TestCanonicalTextIsCalicos(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug",
		"all()":               "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug",
		"a=='b'":              "s:flMh0m0X_BowkAK_W3j3MgH8oQOsj3WxGDoXCQ",
		"(a == 'b') &&has(c)": "s:a7YG9G3XyFzmdwcUzkbtw0ffcKn8o5bm1xsGyQ",
	} {
		s, err := Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum224([]byte("s:" + s.String()))
		if id := "s:" + base64.RawURLEncoding.EncodeToString(sum[:]); id != want {
			t.Errorf("%q (%s) has the ID %s, want %s", in, s, id, want)
		}
	}
}

func TestNoInputExhaustsTheStack(t *testing.T) {
	const size = 1 << 20
	for _, in := range []string{
		strings.Repeat("(", size),
		strings.Repeat("(", size) + "has(a)" + strings.Repeat(")", size),
		strings.Repeat("!(", size/2),
		strings.Repeat("(has(a) && has(b) || ", 2000) + "has(c)" + strings.Repeat(")", 2000),
		strings.Repeat("(has(a) || has(b) && ", 600) + "has(c)" + strings.Repeat(")", 600),
	} {
		if _, err := Parse(in); err == nil || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("%.30s...: %v", in, err)
		}
	}
	if s, err := Parse(strings.Repeat("!", size) + "has(a)"); err != nil || s.String() != "has(a)" {
		t.Errorf("a million negations: %v, %v", s, err)
	}
}

func parsed(t *testing.T, text string) *Selector {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The canonical text of a composed selector is that of a parsed one, so it identifies both.
func TestComposition(t *testing.T) {
	has := Has{Label: "in"}
	for _, c := range []struct {
		rule string
		got  *Selector
		want string
	}{
		{"both", Both(parsed(t, "has(a) || has(b)"), parsed(t, "!has(c)")), `((has(a) || has(b)) && !has(c))`},
		{"both keeps groups", Both(parsed(t, "has(a) && has(b)"), parsed(t, "has(c)")),
			`((has(a) && has(b)) && has(c))`},
		{"nothing and one", Both(nil, parsed(t, "has(a)")), `has(a)`},
		{"one and nothing", Both(parsed(t, "has(a)"), nil), `has(a)`},
		{"prefix", parsed(t, "has(a) && !(b == 'x' || c in {'y'}) && all()").Prefixed("p."),
			`(has(p.a) && !(p.b == "x" || p.c in {"y"}) && all())`},
		{"all() replaced", parsed(t, "all() && !all() && global()").Replace(All{}, has),
			`(has(in) && !has(in) && global())`},
		{"two negations cancel out", parsed(t, "!global() || a in {}").Replace(Global{}, Not{Operand: has}),
			`(has(in) || a in {})`},
		{"values are sorted and unique", OneOf("a", []string{"c", "b", "c"}), `a in {"b", "c"}`},
		{"values without a text", OneOf("a", []string{`"'`, "b", "'"}), `a in {"'", "b"}`},
	} {
		if got := c.got.String(); got != c.want || parsed(t, got).String() != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
	}
	if s := (*Selector)(nil); Both(s, s) != nil || s.Prefixed("p.") != nil || s.Replace(All{}, has) != nil {
		t.Error("something is made of nothing")
	}
}

func TestConditions(t *testing.T) {
	var got []string
	for n := range parsed(t, "has(a) && !(has(b) || !all() || c == 'd') && e in {'f'}").Conditions() {
		got = append(got, canonical(n))
		if len(got) == 4 {
			break
		}
	}
	if all := strings.Join(got, ", "); all != `has(a), has(b), all(), c == "d"` {
		t.Error(all)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "all()", "global()", "has(a)", "a == 'b'", `a != "b"`, "a in {'x', 'y',}", "a not in {}", "a contains 'x'",
		"a starts with 'x' && b ends with 'y'", "!(has(a) || !has(b)) && c == 'd'", "((((", "!(!a == 'b')", "a === b",
		"has( in )",
		"has(a) || has(b) && has(c)", `a == 'say "x"'`,
	} {
		f.Add(s, "b")
	}
	f.Fuzz(func(t *testing.T, in, value string) {
		s, err := Parse(in)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil {
			t.Fatalf("%q: the canonical form %q does not parse: %v", in, s, err)
		}
		if again.String() != s.String() {
			t.Fatalf("%q: the canonical form of %q is %q", in, s, again)
		}
		for _, labels := range []map[string]string{nil, {"a": value}, {"a": value, "b": value, "c": "d"}} {
			if s.Matches(labels) != again.Matches(labels) {
				t.Fatalf("%q and %q differ for %v", in, s, labels)
			}
		}
	})
}

func BenchmarkMatches(b *testing.B) {
	s, err := Parse("app == 'web' && tier in {'front', 'back'} && !has(legacy)")
	if err != nil {
		b.Fatal(err)
	}
	labels := map[string]string{"app": "web", "tier": "back", "zone": "east"}
	for b.Loop() {
		if !s.Matches(labels) {
			b.Fatal("no match")
		}
	}
}
